/* Weighted means along one dimension of images: see resampled.yaml. */
#include <stdint.h>

/* Rows whose sums are made together, so that a weight is read once for all; and neighbours in a row. */
enum { ROWS = 8, WIDE = 64 };
#define WORK (1 << 17) /* products, from which on threads share them */

/* The kernel over elements T with weights W: sums of type S begin with START and become FINISH(sum).
 */
#define RESAMPLED(NAME, T, W, S, START, FINISH)                                                     \
  /* Of COUNT rows, whose elements lie side by side. */                                             \
  static inline __attribute__((always_inline)) void along_##NAME(                        \
      int rows, T *out, const T *x, const W *weights, const int64_t *first, const int64_t *end,     \
      int64_t size, int64_t count, int64_t taps, int64_t bits) {                                    \
    (void)bits;                                                                                     \
    for (int64_t k = 0; k < count; ++k) {                                                           \
      const W *w = weights + k * taps;                                                              \
      const T *from = x + first[k];                                                                 \
      const int64_t many = end[k] - first[k];                                                       \
      S sum[ROWS];                                                                                  \
      _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) sum[r] = START;                        \
      for (int64_t j = 0; j < many; ++j)                                                            \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) sum[r] += (S)from[r * size + j] * w[j]; \
      _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) out[r * count + k] = FINISH(sum[r]);   \
    }                                                                                               \
  }                                                                                                 \
  /* Of one result, whose elements are rows. */                                                     \
  static void across_##NAME(T *out, const T *x, const W *w, int64_t many, int64_t inner, \
                                       int64_t bits) {                                              \
    (void)bits;                                                                                     \
    for (int64_t c = 0; c < inner; c += WIDE) {                                                     \
      S sum[WIDE];                                                                                  \
      const int64_t width = inner - c < WIDE ? inner - c : WIDE;                                    \
      for (int64_t i = 0; i < WIDE; ++i) sum[i] = START;                                            \
      if (width == WIDE)                                                                            \
        for (int64_t j = 0; j < many; ++j)                                                          \
          for (int64_t i = 0; i < WIDE; ++i) sum[i] += (S)x[j * inner + c + i] * w[j];              \
      else                                                                                          \
        for (int64_t j = 0; j < many; ++j)                                                          \
          for (int64_t i = 0; i < width; ++i) sum[i] += (S)x[j * inner + c + i] * w[j];             \
      for (int64_t i = 0; i < width; ++i) out[c + i] = FINISH(sum[i]);                              \
    }                                                                                               \
  }                                                                                                 \
  static void all_##NAME(T *out, const T *x, const W *weights, const int64_t *first,                \
                         const int64_t *end, int64_t outer, int64_t size, int64_t inner,            \
                         int64_t count, int64_t taps, int64_t bits) {                               \
    const int64_t work = outer * count * inner * taps;                                              \
    if (inner == 1) {                                                                               \
      const int64_t blocks = (outer + ROWS - 1) / ROWS;                                             \
      _Pragma("omp parallel for schedule(static) if (work >= WORK)") for (int64_t b = 0; b < blocks; \
                                                                         ++b) {                     \
        const int64_t row = b * ROWS, last = row + ROWS < outer ? row + ROWS : outer;               \
        if (last - row == ROWS)                                                                     \
          along_##NAME(ROWS, out + row * count, x + row * size, weights, first, end, size, count,   \
                       taps, bits);                                                                 \
        else                                                                                        \
          for (int64_t r = row; r < last; ++r)                                                      \
            along_##NAME(1, out + r * count, x + r * size, weights, first, end, size, count, taps,  \
                         bits);                                                                     \
      }                                                                                             \
      return;                                                                                       \
    }                                                                                               \
    _Pragma("omp parallel for schedule(static) if (work >= WORK)") for (int64_t b = 0;              \
                                                                       b < outer * count; ++b) {    \
      const int64_t k = b % count;                                                                  \
      across_##NAME(out + b * inner, x + (b / count * size + first[k]) * inner, weights + k * taps, \
                    end[k] - first[k], inner, bits);                                                \
    }                                                                                               \
  }

#define AS_IT_IS(sum) (sum)
RESAMPLED(floats, float, float, float, 0.0f, AS_IT_IS)

static inline uint8_t to_byte(int32_t sum) { return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum; }
#define SHIFTED(sum) to_byte((sum) >> bits)
RESAMPLED(bytes, uint8_t, int16_t, int32_t, (int32_t)1 << (bits - 1), SHIFTED)

void resampled_floats(float *out, const float *x, const float *weights, const int64_t *first,
                      const int64_t *end, int64_t outer, int64_t size, int64_t inner, int64_t count,
                      int64_t taps) {
  all_floats(out, x, weights, first, end, outer, size, inner, count, taps, 0);
}

void resampled_bytes(uint8_t *out, const uint8_t *x, const int16_t *weights, const int64_t *first,
                     const int64_t *end, int64_t outer, int64_t size, int64_t inner, int64_t count,
                     int64_t taps, const int64_t *bits) {
  all_bytes(out, x, weights, first, end, outer, size, inner, count, taps, *bits);
}
