/* What kernels in C have beside scalar functions. */

/* What a parallel loop sees of its function, none of which it writes. clang has one address for all
 * threads otherwise, and reads it in every iteration: it then cannot tell that neighbours in memory
 * are neighbours, and gathers them (clang 14 does so all the same). gcc takes copies by itself. */
#ifdef __clang__
#define CAPTURED default(firstprivate)
#else
#define CAPTURED
#endif

/* How many shares the stores of a scatter are divided into. */
int omp_get_max_threads(void);
INLINE int64_t power_of_2_from(int64_t n) { return n < 2 ? 1 : (int64_t)1 << (64 - __builtin_clzll(n - 1)); }

/* A tile of memory with rows and columns exchanged: to[c][r] = from[r][c]. Rows of `to` are 64
 * elements apart, those of `from` `step`. */
#define TURN(BITS, T)                                                                             \
  INLINE void turn_##BITS(void *to, const void *from, int64_t step, int64_t rows, int64_t columns) { \
    T *out = to;                                                                                  \
    const T *in = from;                                                                           \
    for (int64_t r = 0; r < rows; ++r)                                                            \
      for (int64_t c = 0; c < columns; ++c) out[c * 64 + r] = in[r * step + c];                   \
  }
TURN(8, uint8_t)
TURN(16, uint16_t)
TURN(64, uint64_t)
TURN(32_any, uint32_t)
#if __has_builtin(__builtin_shufflevector)
typedef uint32_t eight_t __attribute__((vector_size(32), aligned(4), may_alias));
#define MIX(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d, a + 4, b + 4, c + 4, d + 4)
INLINE void turn_32(void *to, const void *from, int64_t step, int64_t rows, int64_t columns) {
  if ((rows | columns) & 7) {
    turn_32_any(to, from, step, rows, columns);
    return;
  }
  for (int64_t r = 0; r < rows; r += 8)
    for (int64_t c = 0; c < columns; c += 8) {
      const uint32_t *in = (const uint32_t *)from + r * step + c;
      uint32_t *out = (uint32_t *)to + c * 64 + r;
      eight_t x[8], y[8];
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) x[k] = *(const eight_t *)(in + k * step);
#pragma GCC unroll 4
      for (int k = 0; k < 8; k += 2) {
        y[k] = MIX(x[k], x[k + 1], 0, 8, 1, 9);
        y[k + 1] = MIX(x[k], x[k + 1], 2, 10, 3, 11);
      }
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        int j = (k & 4) + ((k & 2) >> 1); /* of four: 0 with 2, and 1 with 3 */
        x[k] = k & 1 ? MIX(y[j], y[j + 2], 2, 3, 10, 11) : MIX(y[j], y[j + 2], 0, 1, 8, 9);
      }
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        *(eight_t *)(out + k * 64) =
            __builtin_shufflevector(x[k], x[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(eight_t *)(out + (k + 4) * 64) =
            __builtin_shufflevector(x[k], x[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
      }
    }
}
#else /* gcc before 12 */
#define turn_32 turn_32_any
#endif

/* A loop that has this is none of vectors. gcc 12 stores neighbours in memory together. Where it
 * loads such under conditions, it takes those of the first vector for all of them, and forgets the
 * order: rows of three of which a part comes from elsewhere, numbers that change places. */
#ifdef __clang__
#define ONE_BY_ONE
#else
#define ONE_BY_ONE __asm__ volatile("")
#endif

/* What a kernel tells the host about a bad index: which check, the value, the size. */
static __attribute__((noinline, cold, unused)) void report(int64_t *status, int64_t check,
                                                           int64_t value, int64_t size) {
  status[1] = value, status[2] = size, status[0] = check;
}

/* Reductions that keep NaN. */
#pragma omp declare reduction(max_f32 : float : omp_out = maximum_f32(omp_in, omp_out)) initializer(omp_priv = -INFINITY)
#pragma omp declare reduction(min_f32 : float : omp_out = minimum_f32(omp_in, omp_out)) initializer(omp_priv = INFINITY)
#pragma omp declare reduction(max_f64 : double : omp_out = maximum_f64(omp_in, omp_out)) initializer(omp_priv = -INFINITY)
#pragma omp declare reduction(min_f64 : double : omp_out = minimum_f64(omp_in, omp_out)) initializer(omp_priv = INFINITY)
#pragma omp declare reduction(max_i64 : int64_t : omp_out = maximum_i64(omp_in, omp_out)) initializer(omp_priv = INT64_MIN)
#pragma omp declare reduction(min_i64 : int64_t : omp_out = minimum_i64(omp_in, omp_out)) initializer(omp_priv = INT64_MAX)
#pragma omp declare reduction(max_i32 : int32_t : omp_out = maximum_i32(omp_in, omp_out)) initializer(omp_priv = INT32_MIN)
#pragma omp declare reduction(min_i32 : int32_t : omp_out = minimum_i32(omp_in, omp_out)) initializer(omp_priv = INT32_MAX)
#pragma omp declare reduction(max_i16 : int16_t : omp_out = maximum_i16(omp_in, omp_out)) initializer(omp_priv = INT16_MIN)
#pragma omp declare reduction(min_i16 : int16_t : omp_out = minimum_i16(omp_in, omp_out)) initializer(omp_priv = INT16_MAX)
#pragma omp declare reduction(max_i8 : int8_t : omp_out = maximum_i8(omp_in, omp_out)) initializer(omp_priv = INT8_MIN)
#pragma omp declare reduction(min_i8 : int8_t : omp_out = minimum_i8(omp_in, omp_out)) initializer(omp_priv = INT8_MAX)
#pragma omp declare reduction(max_u8 : uint8_t : omp_out = maximum_u8(omp_in, omp_out)) initializer(omp_priv = 0)
#pragma omp declare reduction(min_u8 : uint8_t : omp_out = minimum_u8(omp_in, omp_out)) initializer(omp_priv = UINT8_MAX)
