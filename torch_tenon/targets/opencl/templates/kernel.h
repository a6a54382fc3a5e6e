/* What kernels in OpenCL C have beside scalar functions. */
#undef half

/* What a kernel tells the host about a bad index: which check, the value, the size. */
INLINE void report(__global long *status, int64_t check, int64_t value, int64_t size) {
  status[1] = value, status[2] = size, status[0] = check;
}

/* A tile of memory with rows and columns exchanged: to[c][r] = from[r][c]. Rows of `to` are 64
 * elements apart, those of `from` `step`. */
#define TURN(BITS, T)                                                                             \
  INLINE void turn_##BITS(void *to, __global const void *from, int64_t step, int64_t rows,        \
                          int64_t columns) {                                                      \
    T *out = (T *)to;                                                                             \
    __global const T *in = (__global const T *)from;                                              \
    for (int64_t r = 0; r < rows; ++r)                                                            \
      for (int64_t c = 0; c < columns; ++c) out[c * 64 + r] = in[r * step + c];                   \
  }
TURN(8, uint8_t)
TURN(16, uint16_t)
TURN(32_any, uint32_t)
TURN(64, uint64_t)
/* Eight by eight in registers: pairs, fours, then halves change places. */
#define PAIRS(x, y, a, b, c, d) (uint8)(x.a, y.a, x.b, y.b, x.c, y.c, x.d, y.d)
#define FOURS(x, y, a, b, c, d) (uint8)(x.a, x.b, y.a, y.b, x.c, x.d, y.c, y.d)
INLINE void turn_32(void *to, __global const void *from, int64_t step, int64_t rows,
                    int64_t columns) {
  if ((rows | columns) & 7) {
    turn_32_any(to, from, step, rows, columns);
    return;
  }
  for (int64_t r = 0; r < rows; r += 8)
    for (int64_t c = 0; c < columns; c += 8) {
      __global const uint32_t *in = (__global const uint32_t *)from + r * step + c;
      uint32_t *out = (uint32_t *)to + c * 64 + r;
      uint8 x[8], y[8];
      _Pragma("unroll") for (int k = 0; k < 8; ++k) x[k] = vload8(0, in + k * step);
      _Pragma("unroll") for (int k = 0; k < 8; k += 2) {
        y[k] = PAIRS(x[k], x[k + 1], s0, s1, s4, s5);
        y[k + 1] = PAIRS(x[k], x[k + 1], s2, s3, s6, s7);
      }
      _Pragma("unroll") for (int k = 0; k < 8; k += 4)
        _Pragma("unroll") for (int j = 0; j < 2; ++j) {
          x[k + 2 * j] = FOURS(y[k + j], y[k + j + 2], s0, s1, s4, s5);
          x[k + 2 * j + 1] = FOURS(y[k + j], y[k + j + 2], s2, s3, s6, s7);
        }
      _Pragma("unroll") for (int k = 0; k < 4; ++k) {
        vstore8((uint8)(x[k].lo, x[k + 4].lo), 0, out + k * 64);
        vstore8((uint8)(x[k].hi, x[k + 4].hi), 0, out + (k + 4) * 64);
      }
    }
}

/* Floats as integers in the same order, for the greatest and the least of many: NaN is beyond all. */
#define KEYS(T, S, I, AS_I, AS_T, GREATEST)                                                       \
  INLINE I max_key_##S(T x) {                                                                     \
    I bits = AS_I(x), key = bits ^ ((bits >> (8 * sizeof(I) - 1)) & GREATEST);                    \
    return x != x ? GREATEST : key;                                                               \
  }                                                                                               \
  INLINE T max_of_key_##S(I key) {                                                                \
    return key == GREATEST ? (T)NAN : AS_T(key ^ ((key >> (8 * sizeof(I) - 1)) & GREATEST));      \
  }                                                                                               \
  INLINE I min_key_##S(T x) {                                                                     \
    I bits = AS_I(x), key = bits ^ ((bits >> (8 * sizeof(I) - 1)) & GREATEST);                    \
    return x != x ? -GREATEST - 1 : key;                                                          \
  }                                                                                               \
  INLINE T min_of_key_##S(I key) {                                                                \
    return key == -GREATEST - 1 ? (T)NAN                                                          \
                                : AS_T(key ^ ((key >> (8 * sizeof(I) - 1)) & GREATEST));          \
  }
KEYS(float, f32, int32_t, as_int, as_float, INT_MAX)
KEYS(double, f64, int64_t, as_long, as_double, LONG_MAX)
