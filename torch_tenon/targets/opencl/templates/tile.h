/* The product of two matrices for kernels that name `multiply_tile_`, a tile of it for each
 * work-group: on a device whose work-items are many, as a GPU's. */
#define TILE_DEPTH 16 /* of the parts of the matrices that local memory has */
#define TILE_BESIDE 4 /* rows and columns of a work-item's that lie side by side */

/* Of COUNT rows or columns so many lie side by side, those of the next of ITEMS work-items follow. */
#define TILE_GROUP(COUNT) ((COUNT) < TILE_BESIDE ? (COUNT) : TILE_BESIDE)
/* Where in the tile a work-item's K-th row or column is. */
#define TILE_PLACE(K, ITEM, ITEMS, COUNT)                                                          \
  ((K) / TILE_GROUP(COUNT) * (ITEMS) * TILE_GROUP(COUNT) + (ITEM) * TILE_GROUP(COUNT) +            \
   (K) % TILE_GROUP(COUNT))
/* A work-item's COUNT elements of `from`: vectors, where so many lie side by side. */
#define TILE_READ(TO, FROM, ITEM, ITEMS, COUNT)                                                    \
  _Pragma("unroll") for (int i = 0; i < (COUNT); i += TILE_GROUP(COUNT)) {                         \
    __local const float *const place = (FROM) + TILE_PLACE(i, ITEM, ITEMS, COUNT);                 \
    if (TILE_GROUP(COUNT) == 4) {                                                                  \
      const float4 four = *(__local const float4 *)place;                                          \
      TO[i] = four.x, TO[i + 1] = four.y, TO[i + 2] = four.z, TO[i + 3] = four.w;                  \
    } else                                                                                         \
      _Pragma("unroll") for (int j = 0; j < TILE_GROUP(COUNT); ++j) TO[i + j] = place[j];          \
  }

/* Rows `top` to `bottom` and columns `left` to `right` into `sums`, of which each of DOWN * ACROSS
 * work-items has TALL * WIDE. `lefts` and `rights` are the parts of both matrices, a column of the
 * one and a row of the other after the next. They are read from memory along whatever is dense
 * there. `down` and `along` are steps from row to row and from column to column. */
#define MULTIPLY_TILE(NAME, T, LOAD, STORE, DOWN, ACROSS, TALL, WIDE)                              \
  INLINE void multiply_tile_##NAME(                                                                \
      float *sums, __local float *lefts, __local float *rights, __global const T *a,               \
      int64_t a_down, int64_t a_along, __global const T *b, int64_t b_down, int64_t b_along,       \
      int64_t top, int64_t bottom, int64_t left, int64_t right, int64_t depth) {                   \
    const int item = get_local_id(0), row = item / (ACROSS), column = item % (ACROSS);             \
    _Pragma("unroll") for (int i = 0; i < (TALL) * (WIDE); ++i) sums[i] = 0.0f;                    \
    for (int64_t first = 0; first < depth; first += TILE_DEPTH) {                                  \
      for (int n = item; n < (DOWN) * (TALL) * TILE_DEPTH; n += (DOWN) * (ACROSS)) {               \
        const bool is_along = a_along == 1;                                                        \
        const int k = is_along ? n % TILE_DEPTH : n / ((DOWN) * (TALL));                           \
        const int i = is_along ? n / TILE_DEPTH : n % ((DOWN) * (TALL));                           \
        const bool there = first + k < depth && top + i < bottom;                                  \
        lefts[k * ((DOWN) * (TALL) + TILE_BESIDE) + i] =                                           \
            there ? LOAD(a[(top + i) * a_down + (first + k) * a_along]) : 0.0f;                    \
      }                                                                                            \
      for (int n = item; n < (ACROSS) * (WIDE) * TILE_DEPTH; n += (DOWN) * (ACROSS)) {             \
        const bool is_down = b_along != 1 && b_down == 1;                                          \
        const int k = is_down ? n % TILE_DEPTH : n / ((ACROSS) * (WIDE));                          \
        const int j = is_down ? n / TILE_DEPTH : n % ((ACROSS) * (WIDE));                          \
        const bool there = first + k < depth && left + j < right;                                  \
        rights[k * ((ACROSS) * (WIDE) + TILE_BESIDE) + j] =                                        \
            there ? LOAD(b[(first + k) * b_down + (left + j) * b_along]) : 0.0f;                   \
      }                                                                                            \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                \
      for (int k = 0; k < TILE_DEPTH; ++k) {                                                       \
        float x[TALL], y[WIDE];                                                                    \
        TILE_READ(x, lefts + k * ((DOWN) * (TALL) + TILE_BESIDE), row, DOWN, TALL)                 \
        TILE_READ(y, rights + k * ((ACROSS) * (WIDE) + TILE_BESIDE), column, ACROSS, WIDE)         \
        _Pragma("unroll") for (int i = 0; i < (TALL); ++i)                                         \
            _Pragma("unroll") for (int j = 0; j < (WIDE); ++j) sums[i * (WIDE) + j] =              \
                fma(x[i], y[j], sums[i * (WIDE) + j]);                                             \
      }                                                                                            \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                \
    }                                                                                              \
  }                                                                                                \
  /* A part of the tile into local memory: what lies side by side in each work-item. */            \
  INLINE void put_tile_##NAME(__local T *out, const float *sums, int rows, int columns) {          \
    const int item = get_local_id(0), row = item / (ACROSS), column = item % (ACROSS);             \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    _Pragma("unroll") for (int i = 0; i < TILE_GROUP(TALL); ++i)                                   \
        _Pragma("unroll") for (int j = 0; j < TILE_GROUP(WIDE); ++j)                               \
            out[(row * TILE_GROUP(TALL) + i) * (ACROSS) * TILE_GROUP(WIDE) +                       \
                column * TILE_GROUP(WIDE) + j] =                                                   \
                STORE(sums[(rows * TILE_GROUP(TALL) + i) * (WIDE) +                                \
                           columns * TILE_GROUP(WIDE) + j]);                                       \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
  }
