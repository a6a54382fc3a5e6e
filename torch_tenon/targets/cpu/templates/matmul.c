#include <pthread.h>
#include <stdlib.h>
/* Products of matrices of any strides. Panels of both operands are packed so that the inner kernel
 * reads memory in order; it keeps a block of ROWS x COLUMNS sums in registers. Small operands are
 * read where they are. An epilogue runs over each piece of the product while it is in the cache. */
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
#define SMALL (1 << 17)         /* elements of an operand that need no packing */

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

/* Where a block takes a part of a panel's row, memory is asked for the next part as well: blocks to
 * come find it in the cache. */
#if COLUMNS < TENON_PANEL
#define AHEAD(b) __builtin_prefetch((b) + COLUMNS)
#else
#define AHEAD(b)
#endif

/* R rows of COLUMNS: C = or += A B. Element (i, k) of A is a[i * AI + k * AK]. Multiplied and added in
 * one rounding. */
#define BLOCK(NAME, R, AI, AK)                                                                     \
  static __attribute__((CONTRACTED)) void NAME(                                                    \
      const float *a, int64_t ai, int64_t ak, const float *b, int64_t bk, int64_t depth, float *c, \
      int64_t stride, int64_t columns, int first) {                                                \
    lanes_t sum[R][2];                                                                             \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) sum[i][0] = sum[i][1] = (lanes_t){0};     \
    for (int64_t k = 0; k < depth; ++k, a += AK, b += bk) {                                        \
      const lanes_t left = *(const lanes_t *)b, right = *(const lanes_t *)(b + LANES);             \
      AHEAD(b);                                                                                    \
      _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) {                                       \
        sum[i][0] += a[i * (AI)] * left;                                                           \
        sum[i][1] += a[i * (AI)] * right;                                                          \
      }                                                                                            \
    }                                                                                              \
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

typedef void (*block_t)(const float *, int64_t, int64_t, const float *, int64_t, int64_t, float *,
                        int64_t, int64_t, int);
#define PACKED(R) packed_##R,
#define STRIDED(R) strided_##R,
static const block_t packed_blocks[] = {EACH(PACKED)};
static const block_t strided_blocks[] = {EACH(STRIDED)};

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

static pthread_key_t room_key;
static pthread_once_t room_once = PTHREAD_ONCE_INIT;
static void make_room_key(void) { pthread_key_create(&room_key, free); }

/* Memory of a thread's own, kept between calls (fresh pages cost more than a small product) and
 * freed when the thread ends. */
static float *room(int64_t floats) {
  static __thread float *memory;
  static __thread int64_t size;
  if (size < floats) {
    free(memory);
    size = floats;
    memory = aligned_alloc(64, (floats * 4 + 63) / 64 * 64);
    if (memory == NULL) abort();
    pthread_once(&room_once, make_room_key);
    pthread_setspecific(room_key, memory);
  }
  return memory;
}

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* A finished piece: converted where the product is not float32, and handed to the epilogue. */
static void finish(const tenon_matmul_t *p, const float *sums, int64_t step, float *narrow,
                   const int64_t *box) {
  const void *piece = sums;
  const int64_t width = box[3] - box[2];
  if (p->dtype != 0) {
    uint16_t *to = (uint16_t *)narrow;
    int64_t to_step = width;
    if (p->kept || p->epilogue == NULL) {
      to = (uint16_t *)p->c + box[4] * p->c_strides[0] + box[0] * p->c_strides[1] + box[2];
      to_step = p->c_strides[1];
    }
    for (int64_t i = 0; i < box[1] - box[0]; ++i)
      for (int64_t j = 0; j < width; ++j)
        to[i * to_step + j] = p->dtype == 1 ? to_bf16(sums[i * step + j]) : to_f16(sums[i * step + j]);
    piece = to;
    step = to_step;
  }
  if (p->epilogue != NULL) p->epilogue(piece, step, box, p->arguments, p->sizes, p->status);
}

/* Where row k and column j of B are, which lies in panels. */
static inline const float *in_panels(const tenon_matmul_t *p, int64_t k, int64_t j) {
  return (const float *)p->b + j / TENON_PANEL * TENON_PANEL * p->k + k * TENON_PANEL +
         j % TENON_PANEL;
}

/* Rows r0 to r1 and columns c0 to c1 of one matrix of the product, on this thread. */
static void rectangle(const tenon_matmul_t *p, int64_t number, int64_t r0, int64_t r1, int64_t c0,
                      int64_t c1) {
  const int64_t ai = p->a_strides[1], ak = p->a_strides[2];
  const int64_t bk = p->b_strides[1], bj = p->b_strides[2];
  const int64_t a0 = number * p->a_strides[0], b0 = number * p->b_strides[0];
  const pack_t pack = packers[p->dtype];
  const int64_t rows = r1 - r0, columns = c1 - c0;
  const int64_t deepest = p->panels ? DEPTH_OF_PANELS : DEPTH;
  const int64_t slices = (p->k + deepest - 1) / deepest, depth_most = slices ? (p->k + slices - 1) / slices : 1;
  const int into = p->dtype == 0 && p->c != NULL;
  const int whole = slices > 1; /* sums of several slices: they need memory for a band */
  const int64_t most = p->windows != NULL ? WIDTH / 2 : WIDTH;
  const int64_t width_most = smaller(most, (columns + COLUMNS - 1) / COLUMNS * COLUMNS);
  const int read_a = p->dtype == 0 && (rows * p->k <= SMALL || rows <= ROWS) && columns <= 8 * COLUMNS;
  const int read_b = p->panels || (p->windows == NULL && p->dtype == 0 && bj == 1 &&
                                   (columns * p->k <= SMALL || rows <= 4 * ROWS));
  const int64_t packed = p->panels ? 0 : width_most * depth_most + LANES;
  float *panels = room(packed + HEIGHT * depth_most + HEIGHT * GROUP +
                       (into ? 0 : (whole ? smaller(BAND, rows) * width_most : HEIGHT * GROUP)));
  float *left = panels + packed, *narrow = left + HEIGHT * depth_most;
  float *own = narrow + HEIGHT * GROUP;
  for (int64_t j0 = c0; j0 < c1; j0 += most) {
    const int64_t width = smaller(most, c1 - j0);
    for (int64_t band = r0; band < r1; band += BAND) {
      const int64_t band_end = smaller(band + BAND, r1);
      for (int64_t k0 = 0; k0 == 0 || k0 < p->k; k0 += depth_most) {
        const int64_t depth = smaller(depth_most, p->k - k0);
        const int last = k0 + depth >= p->k;
        for (int64_t j = 0; j < width; j += COLUMNS) {
          const int64_t some = smaller(COLUMNS, width - j);
          if (p->windows != NULL)
            pack_windows(panels + j * depth_most, p, b0, k0, depth, j0 + j, some);
          else if (!read_b || (some < COLUMNS && !p->panels))
            pack(panels + j * depth_most, p->b, b0 + k0 * bk + (j0 + j) * bj, bk, bj, depth, some, COLUMNS);
        }
        for (int64_t i0 = band; i0 < band_end; i0 += HEIGHT) {
          const int64_t height = smaller(HEIGHT, band_end - i0);
          /* Blocks of nearly equal height: a block of few rows costs as much as a full one. */
          const int64_t blocks = (height + ROWS - 1) / ROWS, high = (height + blocks - 1) / blocks;
          if (!read_a)
            for (int64_t i = 0; i < height; i += high) {
              const int64_t some = smaller(high, height - i);
              pack(left + i * depth_most, p->a, a0 + (i0 + i) * ai + k0 * ak, ak, ai, depth, some, some);
            }
          for (int64_t g = 0; g < width; g += GROUP) {
            const int64_t end = smaller(g + GROUP, width);
            int64_t step;
            float *sums;
            if (into) {
              step = p->c_strides[1];
              sums = (float *)p->c + number * p->c_strides[0] + i0 * step + j0 + g;
            } else if (whole) {
              step = width_most;
              sums = own + (i0 - band) * step + g;
            } else {
              step = GROUP;
              sums = own;
            }
            for (int64_t j = g; j < end; j += COLUMNS) {
              const int64_t some = smaller(COLUMNS, width - j);
              const int direct = read_b && some == COLUMNS;
              const float *right = p->panels ? in_panels(p, k0, j0 + j)
                                   : direct  ? (const float *)p->b + b0 + k0 * bk + j0 + j
                                             : panels + j * depth_most;
              const int64_t down = p->panels ? TENON_PANEL : direct ? bk : COLUMNS;
              for (int64_t i = 0; i < height; i += high) {
                const int64_t r = smaller(high, height - i);
                const float *from = read_a ? (const float *)p->a + a0 + (i0 + i) * ai + k0 * ak
                                           : left + i * depth_most;
                (read_a ? strided_blocks : packed_blocks)[r - 1](
                    from, ai, ak, right, down, depth, sums + i * step + j - g, step, some, k0 == 0);
              }
            }
            if (last && (p->dtype != 0 || p->epilogue != NULL)) {
              const int64_t box[5] = {i0, i0 + height, j0 + g, j0 + end, number};
              finish(p, sums, step, narrow, box);
            }
          }
        }
      }
    }
  }
}

/* Rows of one product of an image's windows with panels: places `at` to `at` + count of a row of places.
 * Each call adds what one run of the kernel gives, in order, so that nothing is packed. */
static void place_block(const tenon_places_t *w, const float *image, const int64_t *at, int64_t count,
                        const float *panel, float *c, int64_t step, int64_t columns) {
  const int64_t top = at[0] * w->stride[0] - w->padding[0];
  const int64_t left = at[1] * w->stride[1] - w->padding[1], across = w->stride[1];
  const int64_t wide = w->kernel[1], apart = w->dilation[1];
  const int inside =
      left >= 0 && left + (count - 1) * across + (wide - 1) * apart < w->size[1];
  /* Neighbours in a row of the kernel are one run where they are neighbours in memory. */
  const int64_t joined = inside && (wide == 1 || apart * w->step[1] == w->channels) ? wide : 1;
  int first = 1;
  if (!inside) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < columns; ++j) c[i * step + j] = 0;
    first = 0;
  }
  for (int64_t y = 0; y < w->kernel[0]; ++y) {
    const int64_t row = top + y * w->dilation[0];
    if (row < 0 || row >= w->size[0]) continue;
    for (int64_t x = 0; x < wide; x += joined) {
      int64_t from = 0, to = count;
      const int64_t begin = left + x * apart;
      if (!inside) {
        from = begin < 0 ? (across - 1 - begin) / across : 0;
        to = begin < w->size[1] ? smaller(count, (w->size[1] - 1 - begin) / across + 1) : 0;
        if (from >= to) continue;
      }
      const float *a = image + row * w->step[0] + (begin + from * across) * w->step[1];
      strided_blocks[to - from - 1](a, across * w->step[1], 1,
                                    panel + (y * wide + x) * w->channels * TENON_PANEL, TENON_PANEL,
                                    joined * w->channels, c + from * step, step, columns, first);
      first = 0;
    }
  }
  if (first)
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < columns; ++j) c[i * step + j] = 0;
}

/* Rows r0 to r1 and columns c0 to c1 of a product with windows of an image, on this thread. */
static void places(const tenon_matmul_t *p, int64_t number, int64_t r0, int64_t r1, int64_t c0,
                   int64_t c1) {
  const tenon_places_t *w = p->places;
  const float *image = (const float *)p->a + number * p->a_strides[0];
  const int64_t step = p->c != NULL ? p->c_strides[1] : GROUP, across = w->places[1];
  float *own = p->c != NULL ? NULL : room(HEIGHT * GROUP);
  for (int64_t g = c0; g < c1; g += GROUP) {
    const int64_t end = smaller(g + GROUP, c1);
    for (int64_t band = r0; band < r1; band += HEIGHT) {
      const int64_t band_end = smaller(band + HEIGHT, r1);
      float *sums = own != NULL ? own
                                : (float *)p->c + number * p->c_strides[0] + band * step + g;
      for (int64_t j = g; j < end; j += COLUMNS) {
        const float *panel = in_panels(p, 0, j);
        for (int64_t start = band, run; start < band_end; start += run) {
          run = smaller(across - start % across, band_end - start);
          const int64_t blocks = (run + ROWS - 1) / ROWS, high = (run + blocks - 1) / blocks;
          for (int64_t i = start; i < start + run; i += high) {
            const int64_t at[2] = {i / across, i % across};
            place_block(w, image, at, smaller(high, start + run - i), panel,
                        sums + (i - band) * step + j - g, step, smaller(COLUMNS, end - j));
          }
        }
      }
      if (p->epilogue != NULL) {
        const int64_t box[5] = {band, band_end, g, end, number};
        finish(p, sums, step, NULL, box);
      }
    }
  }
}

/* Few rows: memory is read once and nothing is packed. Where the rows of B are dense, all registers
 * hold sums of one wide strip of columns. */
#define STRIP(R, W)                                                                                \
  static __attribute__((CONTRACTED)) void strip_##R(                                               \
      const float *a, int64_t ai, int64_t ak, const float *b, int64_t bk, int64_t depth, float *c, \
      int64_t stride) {                                                                            \
    lanes_t sum[R][W];                                                                             \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                            \
        _Pragma("GCC unroll 16") for (int w = 0; w < W; ++w) sum[i][w] = (lanes_t){0};             \
    for (int64_t k = 0; k < depth; ++k, a += ak, b += bk)                                          \
      _Pragma("GCC unroll 16") for (int w = 0; w < W; ++w) {                                       \
        const lanes_t right = *(const lanes_t *)(b + w * LANES);                                   \
        _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) sum[i][w] += a[i * ai] * right;        \
      }                                                                                            \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                            \
        _Pragma("GCC unroll 16") for (int w = 0; w < W; ++w)                                       \
            *(lanes_t *)(c + i * stride + w * LANES) = sum[i][w];                                  \
  }
STRIP(1, 12)
STRIP(2, 6)
STRIP(3, 4)
#define WIDEST (12 * LANES)

/* Where the columns of B are dense (and the rows of A), each element of C is a sum over lanes. */
#define LOAD_F32(p) (*(const lanes_t *)(p))
#define LOAD_BF16(p)                                                                               \
  ((lanes_t)(__builtin_convertvector(*(const half_lanes_t *)(p), bit_lanes_t) << 16))
typedef uint16_t half_lanes_t __attribute__((vector_size(LANES * 2), aligned(2)));
typedef uint32_t bit_lanes_t __attribute__((vector_size(LANES * 4)));
static inline float sum_of_lanes(lanes_t x) {
  typedef float half_t __attribute__((vector_size(LANES * 2)));
  union {
    lanes_t whole;
    half_t half[2];
    four_t four[LANES / 4];
    float one[LANES];
  } u = {x};
#if LANES > 4
  u.half[0] += u.half[1];
#endif
#if LANES > 8
  u.four[0] += u.four[1];
#endif
  return (u.one[0] + u.one[1]) + (u.one[2] + u.one[3]);
}

#define DOTS(NAME, TYPE, LOAD, ONE, R, C)                                                          \
  static __attribute__((CONTRACTED)) void NAME(                                                    \
      const TYPE *a, int64_t ai, const TYPE *b, int64_t bj, int64_t depth, float *c,               \
      int64_t stride) {                                                                            \
    lanes_t sum[R][C];                                                                             \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                            \
        _Pragma("GCC unroll 8") for (int j = 0; j < C; ++j) sum[i][j] = (lanes_t){0};              \
    int64_t k = 0;                                                                                 \
    for (; k + LANES <= depth; k += LANES) {                                                       \
      lanes_t left[R];                                                                             \
      _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) left[i] = LOAD(a + i * ai + k);          \
      _Pragma("GCC unroll 8") for (int j = 0; j < C; ++j) {                                        \
        const lanes_t right = LOAD(b + j * bj + k);                                                \
        if (R > 1) __builtin_prefetch(b + (j + C) * bj + k); /* of the next columns */             \
        _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) sum[i][j] += left[i] * right;          \
      }                                                                                            \
    }                                                                                              \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                            \
        _Pragma("GCC unroll 8") for (int j = 0; j < C; ++j) {                                      \
        float total = sum_of_lanes(sum[i][j]);                                                     \
        for (int64_t q = k; q < depth; ++q) total += ONE(a[i * ai + q]) * ONE(b[j * bj + q]);      \
        c[i * stride + j] = total;                                                                 \
      }                                                                                            \
  }
DOTS(dots_f32_1, float, LOAD_F32, , 1, 6)
DOTS(dots_f32_2, float, LOAD_F32, , 2, 4)
DOTS(dots_f32_3, float, LOAD_F32, , 3, 2)
DOTS(dots_f32_4, float, LOAD_F32, , 4, 2)
DOTS(dots_f32_rest, float, LOAD_F32, , 1, 1)
DOTS(dots_bf16_1, uint16_t, LOAD_BF16, from_bf16, 1, 6)
DOTS(dots_bf16_2, uint16_t, LOAD_BF16, from_bf16, 2, 4)
DOTS(dots_bf16_3, uint16_t, LOAD_BF16, from_bf16, 3, 2)
DOTS(dots_bf16_4, uint16_t, LOAD_BF16, from_bf16, 4, 2)
DOTS(dots_bf16_rest, uint16_t, LOAD_BF16, from_bf16, 1, 1)

#define FEW 8 /* rows up to which sums over lanes beat packing */
#define ALL_DOTS(TYPE, SHORT)                                                                      \
  static void dots_##SHORT(const tenon_matmul_t *p, const TYPE *a, const TYPE *b, int64_t rows,    \
                           int64_t columns, float *c, int64_t step) {                              \
    static void (*const blocks[])(const TYPE *, int64_t, const TYPE *, int64_t, int64_t, float *,  \
                                  int64_t) = {dots_##SHORT##_1, dots_##SHORT##_2,                  \
                                              dots_##SHORT##_3, dots_##SHORT##_4};                 \
    static const int64_t wide[] = {6, 4, 2, 2}; /* columns of a block */                           \
    const int64_t ai = p->a_strides[1], bj = p->b_strides[2], depth = p->k;                        \
    for (int64_t i = 0; i < rows; i += 4) {                                                        \
      const int64_t high = smaller(rows - i, 4), some = wide[high - 1];                            \
      int64_t j = 0;                                                                               \
      for (; j + some <= columns; j += some)                                                       \
        blocks[high - 1](a + i * ai, ai, b + j * bj, bj, depth, c + i * step + j, step);           \
      for (; j < columns; ++j)                                                                     \
        for (int64_t e = i; e < i + high; ++e)                                                     \
          dots_##SHORT##_rest(a + e * ai, ai, b + j * bj, bj, depth, c + e * step + j, step);      \
    }                                                                                              \
  }
ALL_DOTS(float, f32)
ALL_DOTS(uint16_t, bf16)

static void strips(const tenon_matmul_t *p, const float *a, const float *b, int64_t rows,
                   int64_t columns, float *c, int64_t step) {
  const int64_t ai = p->a_strides[1], ak = p->a_strides[2], bk = p->b_strides[1];
  const int64_t wide = WIDEST / rows;
  int64_t j = 0;
  for (; j + wide <= columns; j += wide)
    (rows == 1 ? strip_1 : rows == 2 ? strip_2 : strip_3)(a, ai, ak, b + j, bk, p->k, c + j, step);
  for (; j + COLUMNS <= columns; j += COLUMNS)
    strided_blocks[rows - 1](a, ai, ak, b + j, bk, p->k, c + j, step, COLUMNS, 1);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t l = j; l < columns; ++l) {
      float total = 0;
      for (int64_t k = 0; k < p->k; ++k) total += a[i * ai + k * ak] * b[k * bk + l];
      c[i * step + l] = total;
    }
}

/* R rows times a whole panel. A sum waits for the one before it, so there are as many of them at
 * once as hide that: STEPS rows of the panel are read together. */
#define VECTORS (TENON_PANEL / LANES)
#define OF_PANEL(R, STEPS)                                                                         \
  static __attribute__((CONTRACTED)) void of_panel_##R(                                            \
      const float *a, int64_t ai, int64_t ak, const float *b, int64_t depth, float *c,             \
      int64_t stride, int64_t columns) {                                                           \
    lanes_t sum[R][STEPS][VECTORS];                                                                \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                            \
        _Pragma("GCC unroll 8") for (int s = 0; s < STEPS; ++s)                                    \
            _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS; ++v) sum[i][s][v] = (lanes_t){0}; \
    int64_t k = 0;                                                                                 \
    for (; k + STEPS <= depth; k += STEPS, a += STEPS * ak, b += STEPS * TENON_PANEL)              \
      _Pragma("GCC unroll 8") for (int s = 0; s < STEPS; ++s)                                      \
          _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS; ++v) {                              \
        const lanes_t right = LOAD_F32(b + s * TENON_PANEL + v * LANES);                           \
        _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                        \
            sum[i][s][v] += a[i * ai + s * ak] * right;                                            \
      }                                                                                            \
    for (; k < depth; ++k, a += ak, b += TENON_PANEL)                                              \
      _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS; ++v)                                    \
          _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                      \
              sum[i][0][v] += a[i * ai] * LOAD_F32(b + v * LANES);                                 \
    float whole[TENON_PANEL];                                                                      \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) {                                          \
      float *to = columns == TENON_PANEL ? c + i * stride : whole;                                 \
      _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS; ++v) {                                  \
        lanes_t total = sum[i][0][v];                                                              \
        _Pragma("GCC unroll 8") for (int s = 1; s < STEPS; ++s) total += sum[i][s][v];             \
        *(lanes_t *)(to + v * LANES) = total;                                                      \
      }                                                                                            \
      for (int64_t j = 0; to == whole && j < columns; ++j) c[i * stride + j] = whole[j];           \
    }                                                                                              \
  }
#define STEPS(R) (8 / VECTORS / R > 1 ? 8 / VECTORS / R : 1)
OF_PANEL(1, STEPS(1))
OF_PANEL(2, STEPS(2))
OF_PANEL(3, STEPS(3))
OF_PANEL(4, STEPS(4))
#define FEW_OF_PANELS (LANES == 16 ? 4 : 8) /* rows that are multiplied by whole panels */

static void by_panels(const tenon_matmul_t *p, const float *a, int64_t j0, int64_t columns,
                      float *c, int64_t step) {
  static void (*const of_rows[])(const float *, int64_t, int64_t, const float *, int64_t, float *,
                                 int64_t, int64_t) = {of_panel_1, of_panel_2, of_panel_3,
                                                      of_panel_4};
  const int64_t ai = p->a_strides[1];
  for (int64_t j = 0; j < columns; j += TENON_PANEL)
    for (int64_t i = 0; i < p->m; i += 4)
      of_rows[smaller(p->m - i, 4) - 1](a + i * ai, ai, p->a_strides[2], in_panels(p, 0, j0 + j),
                                        p->k, c + i * step + j, step,
                                        smaller(TENON_PANEL, columns - j));
}

/* Whether few rows are multiplied without packing. */
static int without_packing(const tenon_matmul_t *p) {
  if (p->panels) return p->m <= FEW_OF_PANELS && p->places == NULL;
  if (p->windows != NULL || p->places != NULL) return 0;
  if (p->dtype < 2 && p->m <= FEW && p->a_strides[2] == 1 && p->b_strides[1] == 1) return 1;
  return p->dtype == 0 && p->m <= 3 && p->b_strides[2] == 1;
}

/* Columns c0 to c1 of one matrix of few rows, on this thread, in pieces for the epilogue. */
static void few_rows(const tenon_matmul_t *p, int64_t number, int64_t c0, int64_t c1) {
  const int64_t a0 = number * p->a_strides[0], b0 = number * p->b_strides[0];
  const int64_t bj = p->b_strides[2];
  const int into = p->dtype == 0 && p->c != NULL;
  float *own = room(2 * FEW * 4 * WIDEST), *narrow = own + FEW * 4 * WIDEST;
  for (int64_t j = c0; j < c1; j += 4 * WIDEST) {
    const int64_t columns = smaller(4 * WIDEST, c1 - j), step = into ? p->c_strides[1] : 4 * WIDEST;
    float *c = into ? (float *)p->c + number * p->c_strides[0] + j : own;
    if (p->dtype == 1)
      dots_bf16(p, (const uint16_t *)p->a + a0, (const uint16_t *)p->b + b0 + j * bj, p->m, columns,
                c, step);
    else if (p->panels)
      by_panels(p, (const float *)p->a + a0, j, columns, c, step);
    else
      (p->b_strides[2] == 1 && p->m <= 3 ? strips : dots_f32)(
          p, (const float *)p->a + a0, (const float *)p->b + b0 + j * bj, p->m, columns, c, step);
    if (p->dtype != 0 || p->epilogue != NULL) {
      const int64_t box[5] = {0, p->m, j, j + columns, number};
      finish(p, c, step, narrow, box);
    }
  }
}

/* How many parts the rows are cut into for the threads; the columns take the rest. Parts are as
 * nearly square as they can be: that reads least. */
static int64_t row_parts(int64_t m, int64_t n, int64_t threads) {
  int64_t best = 1;
  double least = 1e30;
  for (int64_t r = 1; r <= threads; ++r) {
    if (threads % r) continue;
    const double high = (double)((m + r - 1) / r + ROWS - 1) / ROWS * ROWS;
    const double wide = (double)((n + threads / r - 1) / (threads / r) + COLUMNS - 1) / COLUMNS * COLUMNS;
    const double cost = high * wide + 16 * (high + wide);
    if (cost < least) least = cost, best = r;
  }
  return best;
}

/* The product cut into parts: each matrix into `rows` x `columns` of `high` x `wide`. */
typedef struct {
  int64_t rows, columns, high, wide;
  int few;
} cut_t;

static void part(const tenon_matmul_t *p, const cut_t *cut, int64_t t) {
  const int64_t r = t / cut->columns % cut->rows * cut->high, c = t % cut->columns * cut->wide;
  const int64_t number = t / (cut->rows * cut->columns);
  if (r >= p->m || c >= p->n) return;
  if (cut->few)
    few_rows(p, number, c, smaller(c + cut->wide, p->n));
  else if (p->places != NULL)
    places(p, number, r, smaller(r + cut->high, p->m), c, smaller(c + cut->wide, p->n));
  else
    rectangle(p, number, r, smaller(r + cut->high, p->m), c, smaller(c + cut->wide, p->n));
}

void @NAME@(const tenon_matmul_t *p) {
  cut_t cut = {1, 1, 0, 0, without_packing(p)};
  const int64_t threads = p->threads; /* one where more are not worth it */
  if (threads > 1 && p->batch < 4 * threads && p->batch % threads) {
    cut.rows = cut.few ? 1 : row_parts(p->m, p->n, threads);
    cut.columns = threads / cut.rows;
  }
  cut.high = ((p->m + cut.rows - 1) / cut.rows + ROWS - 1) / ROWS * ROWS;
  const int64_t unit = COLUMNS > TENON_PANEL ? COLUMNS : TENON_PANEL;
  cut.wide = ((p->n + cut.columns - 1) / cut.columns + unit - 1) / unit * unit;
  const int64_t parts = p->batch * cut.rows * cut.columns;
  if (threads <= 1) { /* a team of one thread costs as much as a small product */
    for (int64_t t = 0; t < parts; ++t) part(p, &cut, t);
    return;
  }
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t t = 0; t < parts; ++t) part(p, &cut, t);
}
