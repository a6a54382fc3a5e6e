/* What the driver of products multiplies with and packs: a block of ROWS x COLUMNS sums in registers,
 * and panels of an operand, which blocks read in order. */
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 14
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 10
#else
#define LANES 4
#define ROWS 6
#endif
#define COLUMNS (2 * LANES)
#define DEPTH 384               /* of a packed panel: COLUMNS x DEPTH floats stay in the L1 cache */
#define DEPTH_OF_PANELS 1024    /* of panels that lie so in memory, which the L2 cache keeps */
#define HEIGHT (ROWS * (96 / ROWS)) /* rows of packed A: HEIGHT x DEPTH floats stay in L2 */
#define WIDTH 1024              /* columns of packed B, of windows half as many: they stay in L2 */
#define BAND (HEIGHT * 8)       /* rows for which B is packed once */
#define GROUP (4 * COLUMNS)     /* columns of one call of the epilogue */
#define PIECE 4096              /* elements of one call of the epilogue, of a product with an image */
#define SMALL (1 << 17)         /* elements of an operand that need no packing */
#define OF_L2 (1 << 16)         /* elements of an operand that stay in L2 beside the others */

typedef float lanes_t __attribute__((vector_size(LANES * 4), aligned(4)));
typedef float four_t __attribute__((vector_size(16), aligned(4)));
#ifdef __clang__
#define PICK(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#define CONTRACTED noinline
#pragma clang fp contract(fast)
#else
typedef int32_t pick_t __attribute__((vector_size(16)));
#define PICK(x, y, ...) __builtin_shuffle(x, y, (pick_t){__VA_ARGS__})
#define CONTRACTED noinline, optimize("fp-contract=fast")
#endif

/* Weights come from farther away than a processor's own caches, so memory is asked for rows to come.
 * Where a block takes a part of a panel's row, the next part is asked for as well. */
#define ROWS_TO_COME 1024 /* elements: 4 KiB, by whole lines of memory */
#if COLUMNS < TENON_PANEL
#define AHEAD(b)                                                                                   \
  __builtin_prefetch((b) + COLUMNS, 0, 2), __builtin_prefetch((b) + ROWS_TO_COME, 0, 2)
#else
#define AHEAD(b)                                                                                   \
  __builtin_prefetch((b) + ROWS_TO_COME, 0, 2), __builtin_prefetch((b) + ROWS_TO_COME + 16, 0, 2)
#endif

/* R rows of COLUMNS: C = or += A B. Element (i, k) of A is a[i * AI + k * AK]. Multiplied and added in
 * one rounding. A row of A may be several runs of `depth` elements, each `gap` behind the last one's
 * end; B has them one after the other. */
#define BLOCK(NAME, R, AI, AK)                                                                     \
  static __attribute__((CONTRACTED)) void NAME(                                                    \
      const float *a, int64_t ai, int64_t ak, const float *b, int64_t bk, int64_t depth,           \
      int64_t runs, int64_t gap, float *c, int64_t stride, int64_t columns, int first) {           \
    lanes_t sum[R][2];                                                                             \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) sum[i][0] = sum[i][1] = (lanes_t){0};     \
    for (; runs > 0; --runs, a += gap)                                                             \
      for (int64_t k = 0; k < depth; ++k, a += AK, b += bk) {                                      \
        const lanes_t left = *(const lanes_t *)b, right = *(const lanes_t *)(b + LANES);           \
        AHEAD(b);                                                                                  \
        _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) {                                     \
          sum[i][0] += a[i * (AI)] * left;                                                         \
          sum[i][1] += a[i * (AI)] * right;                                                        \
        }                                                                                          \
      }                                                                                            \
    if (columns == COLUMNS) {                                                                      \
      _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) {                                       \
        lanes_t *p = (lanes_t *)(c + i * stride), *q = (lanes_t *)(c + i * stride + LANES);        \
        *p = first ? sum[i][0] : *p + sum[i][0];                                                   \
        *q = first ? sum[i][1] : *q + sum[i][1];                                                   \
      }                                                                                            \
      return;                                                                                      \
    }                                                                                              \
    float edge[R][COLUMNS];                                                                        \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) {                                         \
      *(lanes_t *)edge[i] = sum[i][0];                                                             \
      *(lanes_t *)(edge[i] + LANES) = sum[i][1];                                                   \
    }                                                                                              \
    for (int64_t i = 0; i < R; ++i)                                                                \
      for (int64_t j = 0; j < columns; ++j)                                                        \
        c[i * stride + j] = first ? edge[i][j] : c[i * stride + j] + edge[i][j];                   \
  }
#define BOTH(R) BLOCK(packed_##R, R, 1, R) BLOCK(strided_##R, R, ai, ak)
#define EACH_TO_6(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define EACH_TO_10(X) EACH_TO_6(X) X(7) X(8) X(9) X(10)
#define EACH_TO_14(X) EACH_TO_10(X) X(11) X(12) X(13) X(14)
#if ROWS == 14
#define EACH EACH_TO_14
#elif ROWS == 10
#define EACH EACH_TO_10
#else
#define EACH EACH_TO_6
#endif
EACH(BOTH)

typedef void (*block_t)(const float *, int64_t, int64_t, const float *, int64_t, int64_t, int64_t,
                        int64_t, float *, int64_t, int64_t, int);
#define PACKED(R) packed_##R,
#define STRIDED(R) strided_##R,
static const block_t packed_blocks[] = {EACH(PACKED)};
static const block_t strided_blocks[] = {EACH(STRIDED)};

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

static inline float element(const void *x, int64_t i, int64_t dtype) {
  if (dtype == 0) return ((const float *)x)[i];
  return dtype == 1 ? from_bf16(((const uint16_t *)x)[i]) : from_f16(((const uint16_t *)x)[i]);
}

/* to[k * width + l] = from[k * fk + l * fl] for k < depth, l < some; 0 for l from some to width. */
#define PACK(NAME, DTYPE)                                                                          \
  static void NAME(float *to, const void *from, int64_t start, int64_t fk, int64_t fl,             \
                   int64_t depth, int64_t some, int64_t width) {                                   \
    if (fl == 1 && some == width) {                                                                \
      for (int64_t k = 0; k < depth; ++k)                                                          \
        for (int64_t l = 0; l < width; ++l)                                                        \
          to[k * width + l] = element(from, start + k * fk + l, DTYPE);                            \
      return;                                                                                      \
    }                                                                                              \
    for (int64_t k = 0; k < depth; ++k)                                                            \
      for (int64_t l = 0; l < width; ++l)                                                          \
        to[k * width + l] = l < some ? element(from, start + k * fk + l * fl, DTYPE) : 0.0f;       \
  }
PACK(pack_f32_any, 0)
PACK(pack_bf16, 1)
PACK(pack_f16, 2)

/* The same where k is dense in memory: four by four, turned in registers. */
static void pack_f32(float *to, const void *from, int64_t start, int64_t fk, int64_t fl,
                     int64_t depth, int64_t some, int64_t width) {
  if (fk != 1 || fl == 1 || some < 4) {
    pack_f32_any(to, from, start, fk, fl, depth, some, width);
    return;
  }
  const float *x = (const float *)from + start;
  int64_t l = 0;
  for (; l + 4 <= some; l += 4, x += 4 * fl) {
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
      const four_t a = *(const four_t *)(x + k), b = *(const four_t *)(x + fl + k);
      const four_t c = *(const four_t *)(x + 2 * fl + k), d = *(const four_t *)(x + 3 * fl + k);
      const four_t ab = PICK(a, b, 0, 4, 1, 5);
      const four_t cd = PICK(c, d, 0, 4, 1, 5);
      const four_t ef = PICK(a, b, 2, 6, 3, 7);
      const four_t gh = PICK(c, d, 2, 6, 3, 7);
      float *y = to + k * width + l;
      *(four_t *)y = PICK(ab, cd, 0, 1, 4, 5);
      *(four_t *)(y + width) = PICK(ab, cd, 2, 3, 6, 7);
      *(four_t *)(y + 2 * width) = PICK(ef, gh, 0, 1, 4, 5);
      *(four_t *)(y + 3 * width) = PICK(ef, gh, 2, 3, 6, 7);
    }
    for (; k < depth; ++k)
      for (int64_t e = 0; e < 4; ++e) to[k * width + l + e] = x[e * fl + k];
  }
  for (; l < width; ++l, x += fl)
    for (int64_t k = 0; k < depth; ++k) to[k * width + l] = l < some ? x[k] : 0.0f;
}

typedef void (*pack_t)(float *, const void *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
static const pack_t packers[] = {pack_f32, pack_bf16, pack_f16};

/* Every second of the elements of two vectors. */
static inline lanes_t evens(lanes_t x, lanes_t y) {
#ifdef __clang__
  lanes_t z;
  for (int l = 0; l < LANES / 2; ++l) z[l] = x[2 * l], z[l + LANES / 2] = y[2 * l];
  return z;
#else
  typedef int32_t numbers_t __attribute__((vector_size(LANES * 4)));
  numbers_t number;
  for (int l = 0; l < LANES; ++l) number[l] = 2 * l;
  return __builtin_shuffle(x, y, number);
#endif
}

/* Columns j to j + some of B as windows, at most COLUMNS of them, for rows k to k + depth. A run of
 * columns that lie one or two steps apart is copied by whole vectors, which the next run and the next
 * row then write over: what is beyond `some`, and up to LANES elements after the panel, is of no
 * account. */
static void pack_windows(float *to, const tenon_matmul_t *p, int64_t start, int64_t k, int64_t depth,
                         int64_t j, int64_t some) {
  const tenon_windows_t *w = p->windows;
  const int64_t step = w->column_steps[2];
  int64_t at[COLUMNS], runs[COLUMNS + 1], count = 0, last = 0;
  int64_t column[3] = {j / w->columns[2] / w->columns[1], j / w->columns[2] % w->columns[1],
                       j % w->columns[2]};
  for (int64_t l = 0; l < some; ++l) {
    at[l] = column[0] * w->column_steps[0] + column[1] * w->column_steps[1] +
            column[2] * w->column_steps[2];
    if (l == 0 || at[l] != at[l - 1] + step) runs[count++] = l;
    last = at[l] > last ? at[l] : last;
    if (++column[2] < w->columns[2]) continue;
    column[2] = 0;
    if (++column[1] == w->columns[1]) column[1] = 0, ++column[0];
  }
  runs[count] = some;
  int64_t row[4], left = k;
  for (int d = 3; d >= 0; --d) row[d] = left % w->rows[d], left /= w->rows[d];
  const int by_runs = p->dtype == 0 && (step == 1 || step == 2) && 4 * count <= some + 8;
  for (int64_t e = 0; e < depth; ++e, to += COLUMNS) {
    const int64_t here = row[0] * w->row_steps[0] + row[1] * w->row_steps[1] +
                         row[2] * w->row_steps[2] + row[3] * w->row_steps[3];
    for (int d = 3; d >= 0 && ++row[d] == w->rows[d] && d > 0; --d) row[d] = 0;
    const float *x = (const float *)p->b + start + here;
    if (by_runs && here + last + 2 * COLUMNS <= w->length) {
      for (int64_t r = 0; r < count; ++r) {
        const float *y = x + at[runs[r]];
        for (int64_t l = runs[r]; l < runs[r + 1]; l += LANES, y += step * LANES) {
          const lanes_t first = *(const lanes_t *)y;
          *(lanes_t *)(to + l) = step == 1 ? first : evens(first, *(const lanes_t *)(y + LANES));
        }
      }
    } else if (p->dtype == 0) {
      for (int64_t l = 0; l < some; ++l) to[l] = x[at[l]];
    } else {
      for (int64_t l = 0; l < some; ++l) to[l] = element(p->b, start + here + at[l], p->dtype);
    }
  }
}
