/* The product of two matrices for kernels that name `multiply_`, a tile of it for each work-item:
 * where one has a processor's vectors to itself, as on a CPU. */
#define VECTOR 16
#define DEPTH 256 /* of the panel that stays in the cache */

/* Rows `top` to `bottom` and columns `left` to `right` into `out`, whose rows are SPAN * VECTOR long.
 * A panel of the right matrix is laid out first; ROWS rows at a time go along it. `down` and `along`
 * are steps from row to row and from column to column. */
#define MULTIPLY(NAME, T, LOAD, ROWS, SPAN)                                                       \
  INLINE void multiply_##NAME(float *out, __global const T *a, int64_t a_down, int64_t a_along,   \
                              __global const T *b, int64_t b_down, int64_t b_along, int64_t top,  \
                              int64_t bottom, int64_t left, int64_t right, int64_t depth) {       \
    float panel[DEPTH * SPAN * VECTOR];                                                           \
    const int64_t rows = bottom - top, columns = right - left;                                    \
    for (int64_t first = 0; first < depth || first == 0; first += DEPTH) {                        \
      const int64_t count = min((int64_t)DEPTH, depth - first);                                   \
      if (b_along == 1 && columns == SPAN * VECTOR) {                                             \
        for (int64_t k = 0; k < count; ++k)                                                       \
          for (int64_t j = 0; j < SPAN * VECTOR; ++j)                                             \
            panel[k * SPAN * VECTOR + j] = LOAD(b[(first + k) * b_down + left + j]);              \
      } else {                                                                                    \
        for (int64_t j = 0; j < SPAN * VECTOR; ++j)                                               \
          for (int64_t k = 0; k < count; ++k)                                                     \
            panel[k * SPAN * VECTOR + j] =                                                        \
                j < columns ? LOAD(b[(first + k) * b_down + (left + j) * b_along]) : 0.0f;        \
      }                                                                                           \
      for (int64_t row = 0; row < rows; row += ROWS) {                                            \
        float16 sum[ROWS][SPAN];                                                                  \
        __global const T *from[ROWS];                                                             \
        _Pragma("unroll") for (int r = 0; r < ROWS; ++r) {                                        \
          from[r] = a + (top + min(row + r, rows - 1)) * a_down + first * a_along;                \
          _Pragma("unroll") for (int j = 0; j < SPAN; ++j) sum[r][j] =                            \
              first ? vload16(j, out + (row + r) * SPAN * VECTOR) : (float16)(0.0f);              \
        }                                                                                         \
        for (int64_t k = 0; k < count; ++k) {                                                     \
          float16 right_row[SPAN];                                                                \
          _Pragma("unroll") for (int j = 0; j < SPAN; ++j) right_row[j] =                         \
              vload16(j, panel + k * SPAN * VECTOR);                                              \
          _Pragma("unroll") for (int r = 0; r < ROWS; ++r) {                                      \
            const float x = LOAD(from[r][k * a_along]);                                           \
            _Pragma("unroll") for (int j = 0; j < SPAN; ++j) sum[r][j] =                          \
                fma((float16)(x), right_row[j], sum[r][j]);                                       \
          }                                                                                       \
        }                                                                                         \
        _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                                          \
            _Pragma("unroll") for (int j = 0; j < SPAN; ++j)                                      \
                vstore16(sum[r][j], j, out + (row + r) * SPAN * VECTOR);                          \
      }                                                                                           \
    }                                                                                             \
  }
