/* The product of two matrices for kernels that name `multiply_tile_`, a tile of it for each
 * work-group: on a device whose work-items are many, as a GPU's. */
#define TILE_DEPTH 16 /* of the parts of the matrices that local memory has */

/* Rows `top` to `bottom` and columns `left` to `right` into `out`, whose rows are ACROSS * WIDE long.
 * Of DOWN * ACROSS work-items each has TALL * WIDE elements in registers, DOWN rows and ACROSS columns
 * apart, so that neighbours read neighbours. `lefts` and `rights` are the parts of both matrices, a
 * column of the one and a row of the other after the next. They are read from memory along whatever
 * is dense there. `down` and `along` are steps from row to row and from column to column. */
#define MULTIPLY_TILE(NAME, T, LOAD, STORE, DOWN, ACROSS, TALL, WIDE)                              \
  INLINE void multiply_tile_##NAME(                                                                \
      __local T *out, __local float *lefts, __local float *rights, __global const T *a,            \
      int64_t a_down, int64_t a_along, __global const T *b, int64_t b_down, int64_t b_along,       \
      int64_t top, int64_t bottom, int64_t left, int64_t right, int64_t depth) {                   \
    const int item = get_local_id(0), row = item / (ACROSS), column = item % (ACROSS);             \
    float sums[TALL][WIDE];                                                                        \
    _Pragma("unroll") for (int i = 0; i < TALL; ++i)                                               \
        _Pragma("unroll") for (int j = 0; j < WIDE; ++j) sums[i][j] = 0.0f;                        \
    for (int64_t first = 0; first < depth; first += TILE_DEPTH) {                                  \
      for (int n = item; n < (DOWN) * (TALL) * TILE_DEPTH; n += (DOWN) * (ACROSS)) {               \
        const bool is_along = a_along == 1;                                                        \
        const int k = is_along ? n % TILE_DEPTH : n / ((DOWN) * (TALL));                           \
        const int i = is_along ? n / TILE_DEPTH : n % ((DOWN) * (TALL));                           \
        const bool there = first + k < depth && top + i < bottom;                                  \
        lefts[k * ((DOWN) * (TALL) + 1) + i] =                                                     \
            there ? LOAD(a[(top + i) * a_down + (first + k) * a_along]) : 0.0f;                    \
      }                                                                                            \
      for (int n = item; n < (ACROSS) * (WIDE) * TILE_DEPTH; n += (DOWN) * (ACROSS)) {             \
        const bool is_down = b_along != 1 && b_down == 1;                                          \
        const int k = is_down ? n % TILE_DEPTH : n / ((ACROSS) * (WIDE));                          \
        const int j = is_down ? n / TILE_DEPTH : n % ((ACROSS) * (WIDE));                          \
        const bool there = first + k < depth && left + j < right;                                  \
        rights[k * ((ACROSS) * (WIDE) + 1) + j] =                                                  \
            there ? LOAD(b[(first + k) * b_down + (left + j) * b_along]) : 0.0f;                   \
      }                                                                                            \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                \
      for (int k = 0; k < TILE_DEPTH; ++k) {                                                       \
        float x[TALL], y[WIDE];                                                                    \
        _Pragma("unroll") for (int i = 0; i < TALL; ++i) x[i] =                                    \
            lefts[k * ((DOWN) * (TALL) + 1) + row + i * (DOWN)];                                   \
        _Pragma("unroll") for (int j = 0; j < WIDE; ++j) y[j] =                                    \
            rights[k * ((ACROSS) * (WIDE) + 1) + column + j * (ACROSS)];                           \
        _Pragma("unroll") for (int i = 0; i < TALL; ++i)                                           \
            _Pragma("unroll") for (int j = 0; j < WIDE; ++j) sums[i][j] =                          \
                fma(x[i], y[j], sums[i][j]);                                                       \
      }                                                                                            \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                \
    }                                                                                              \
    _Pragma("unroll") for (int i = 0; i < TALL; ++i)                                               \
        _Pragma("unroll") for (int j = 0; j < WIDE; ++j)                                           \
            out[(row + i * (DOWN)) * (ACROSS) * (WIDE) + column + j * (ACROSS)] =                  \
                STORE(sums[i][j]);                                                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
  }
