#include <pthread.h>
#include <stdlib.h>
/* Products of matrices of any strides, by the blocks of blocks.c. Panels of both operands are packed
 * so that a block reads memory in order. Small operands are read where they are. An epilogue runs over
 * each piece of the product while it is in the cache. */
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
                    from, ai, ak, right, down, depth, 1, 0, sums + i * step + j - g, step, some,
                    k0 == 0);
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

/* Rows r0 to r1 and columns c0 to c1 of a product with windows of an image, on this thread. A piece
 * for the epilogue is as wide as weights of so many columns stay in the L2 cache, since a long row of
 * it costs less than several short ones. It has so few rows that it stays in the L1 cache. */
static void places(const tenon_matmul_t *p, int64_t number, int64_t r0, int64_t r1, int64_t c0,
                   int64_t c1) {
  const tenon_places_t *w = p->places;
  const float *image = (const float *)p->a + number * p->a_strides[0];
  const int into = p->c != NULL && (p->kept || p->epilogue == NULL);
  const int64_t whole = (c1 - c0 + COLUMNS - 1) / COLUMNS * COLUMNS;
  const int64_t kept = OF_L2 / (p->k > 0 ? p->k : 1) / COLUMNS * COLUMNS;
  const int64_t most = kept < GROUP ? GROUP : smaller(kept, 4 * GROUP);
  const int64_t width = smaller(whole, most);
  const int64_t height = (PIECE / width / ROWS > 1 ? PIECE / width / ROWS : 1) * ROWS;
  const int64_t step = into ? p->c_strides[1] : width;
  const int64_t of_bands = floats_of_bands(w, height);
  float *memory = room(of_bands + (into ? 0 : height * width)), *own = memory + of_bands;
  band_t places;
  begin_bands(&places, w, height, memory);
  for (int64_t g = c0; g < c1; g += width) {
    const int64_t end = smaller(g + width, c1);
    for (int64_t band = r0; band < r1; band += height) {
      const int64_t band_end = smaller(band + height, r1);
      float *sums = into ? (float *)p->c + number * p->c_strides[0] + band * step + g : own;
      find_band(&places, w, image, band, band_end - band);
      for (int64_t j = g; j < end; j += COLUMNS)
        multiply_band(&places, in_panels(p, 0, j), sums + j - g, step,
                      into ? smaller(COLUMNS, end - j) : COLUMNS);
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
    strided_blocks[rows - 1](a, ai, ak, b + j, bk, p->k, 1, 0, c + j, step, COLUMNS, 1);
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

/* The product cut into parts: each matrix into `rows` x `columns` of `high` x `wide`. */
typedef struct {
  int64_t rows, columns, high, wide;
  int few;
} cut_t;

/* What reading a number costs, in multiplications: one that nobody has written just now, and one that
 * another processor has. */
#define OF_MEMORY 8
#define OF_OTHERS 32

/* Cuts into so many rows and columns of parts at most. Gives how long the thread takes that does most,
 * where `threads` share the parts. */
static double cut_into(const tenon_matmul_t *p, int64_t rows, int64_t columns, int64_t threads,
                       cut_t *cut) {
  const int64_t unit = COLUMNS < TENON_PANEL && p->places == NULL ? TENON_PANEL : COLUMNS;
  cut->high = ((p->m + rows - 1) / rows + ROWS - 1) / ROWS * ROWS;
  cut->wide = ((p->n + columns - 1) / columns + unit - 1) / unit * unit;
  if (cut->high == 0 || cut->wide == 0) cut->high = ROWS, cut->wide = unit; /* nothing is to do */
  cut->rows = (p->m + cut->high - 1) / cut->high, cut->columns = (p->n + cut->wide - 1) / cut->wide;
  double high = (double)cut->high, wide = (double)cut->wide, read = 2 * OF_MEMORY * (high + wide);
  if (p->places != NULL) {
    /* Blocks of an image are of nearly equal height. What comes before and after it goes by rows. */
    high = (double)smaller(cut->high, p->m), read = OF_MEMORY * wide;
    if (cut->columns > 1) read += OF_OTHERS * high * (1 - 1. / (double)cut->columns);
  }
  const int64_t turns = (p->batch * cut->rows * cut->columns + threads - 1) / threads;
  return (double)turns * (high * wide + read) * (double)p->k;
}

int omp_get_max_threads(void);

/* The best cut into `most` parts at most: into most of them where that costs next to nothing, so that
 * a slower processor does fewer. */
static void cut_for(const tenon_matmul_t *p, int64_t most, cut_t *cut) {
  const int64_t threads = smaller(most, omp_get_max_threads());
  double least = 1e300;
  for (int64_t parts = most; parts >= threads; parts -= threads)
    for (int64_t rows = 1; rows <= parts; ++rows) {
      cut_t tried = *cut;
      if (parts % rows) continue;
      const double cost = cut_into(p, rows, parts / rows, threads, &tried);
      if (cost < (parts == most ? 1 : 0.97) * least) least = cost, *cut = tried;
    }
}

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
  const int is_cut = threads > 1 && p->batch < 4 * threads && p->batch % threads;
  if (is_cut && !cut.few)
    cut_for(p, threads, &cut);
  else
    cut_into(p, 1, is_cut ? threads : 1, threads, &cut);
  const int64_t parts = p->batch * cut.rows * cut.columns;
  if (threads <= 1) { /* a team of one thread costs as much as a small product */
    for (int64_t t = 0; t < parts; ++t) part(p, &cut, t);
    return;
  }
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t t = 0; t < parts; ++t) part(p, &cut, t);
}
