/* Rows of a product of an image's windows with panels. Nothing is packed: blocks read the image. */
#if ROWS == 6
/* A tap is an element of the kernel, or a row of it where the image has that without a gap: where the
 * weights begin in a panel, and where each row of a block does in the image, or in zeros. So a block
 * has as many rows as registers hold, wherever its places are. */
typedef struct {
  int64_t weights;
  const float *row[ROWS];
} tap_t;

/* R rows of COLUMNS, of taps that are `depth` elements long. */
#define WINDOW_BLOCK(R)                                                                            \
  static __attribute__((CONTRACTED)) void window_##R(                                              \
      const tap_t *tap, int64_t taps, int64_t depth, const float *panel, float *c, int64_t stride, \
      int64_t columns) {                                                                           \
    lanes_t sum[R][2];                                                                             \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) sum[i][0] = sum[i][1] = (lanes_t){0};     \
    for (; taps > 0; --taps, ++tap) {                                                              \
      const float *b = panel + tap->weights, *row[R];                                              \
      _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) row[i] = tap->row[i];                   \
      for (int64_t k = 0; k < depth; ++k, b += TENON_PANEL) {                                      \
        const lanes_t left = *(const lanes_t *)b, right = *(const lanes_t *)(b + LANES);           \
        AHEAD(b);                                                                                  \
        _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i) {                                     \
          sum[i][0] += row[i][k] * left;                                                           \
          sum[i][1] += row[i][k] * right;                                                          \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
    float edge[COLUMNS];                                                                           \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; ++i, c += stride) {                            \
      float *to = columns == COLUMNS ? c : edge;                                                   \
      *(lanes_t *)to = sum[i][0];                                                                  \
      *(lanes_t *)(to + LANES) = sum[i][1];                                                        \
      for (int64_t j = 0; to == edge && j < columns; ++j) c[j] = edge[j];                          \
    }                                                                                              \
  }
EACH_TO_6(WINDOW_BLOCK)
#define WINDOW(R) window_##R,
static void (*const window_blocks[])(const tap_t *, int64_t, int64_t, const float *, float *, int64_t,
                                     int64_t) = {EACH_TO_6(WINDOW)};

/* A band of places: for each block of it how many taps it has, and how long they are. */
#define BLOCKS_OF_BAND (PIECE / COLUMNS / ROWS)
typedef struct {
  int64_t count, blocks, most;
  int64_t taps[BLOCKS_OF_BAND], depth[BLOCKS_OF_BAND];
  tap_t *tap; /* `most` of each block */
  float *zeros;
} band_t;

/* How many floats `begin_bands` needs for bands of so many places. */
static int64_t floats_of_bands(const tenon_places_t *w, int64_t places) {
  const int64_t taps = w->kernel[0] * w->kernel[1] * (places / ROWS);
  return taps * (int64_t)(sizeof(tap_t) / sizeof(float)) + w->kernel[1] * w->channels;
}

static void begin_bands(band_t *band, const tenon_places_t *w, int64_t places, float *memory) {
  band->most = w->kernel[0] * w->kernel[1];
  band->tap = (tap_t *)memory;
  band->zeros = (float *)(band->tap + band->most * (places / ROWS));
  for (int64_t k = 0; k < w->kernel[1] * w->channels; ++k) band->zeros[k] = 0;
}

/* Where block `b` of equal ones, or nearly, begins: one of few rows costs as much as a full one. */
static inline int64_t begin_of(const band_t *band, int64_t b) { return band->count * b / band->blocks; }

/* Finds the taps of each block, without those that are outside the image for all of its places. */
static void find_band(band_t *band, const tenon_places_t *w, const float *image, int64_t first,
                      int64_t count) {
  const int64_t apart = w->dilation[1], across = (w->kernel[1] - 1) * apart;
  const int is_dense = w->kernel[1] == 1 || apart * w->step[1] == w->channels;
  band->count = count, band->blocks = (count + ROWS - 1) / ROWS;
  for (int64_t b = 0; b < band->blocks; ++b) {
    const int64_t begin = begin_of(band, b), some = begin_of(band, b + 1) - begin;
    int64_t top[ROWS], left[ROWS], together = is_dense;
    for (int64_t i = 0; i < some; ++i) {
      const int64_t place = first + begin + i;
      top[i] = place / w->places[1] * w->stride[0] - w->padding[0];
      left[i] = place % w->places[1] * w->stride[1] - w->padding[1];
      together &= left[i] >= 0 && left[i] + across < w->size[1];
    }
    tap_t *const taps = band->tap + b * band->most, *tap = taps;
    for (int64_t y = 0; y < w->kernel[0]; ++y)
      for (int64_t x = 0; x < (together ? 1 : w->kernel[1]); ++x) {
        int meets = 0;
        for (int64_t i = 0; i < some; ++i) {
          const int64_t u = top[i] + y * w->dilation[0], v = left[i] + x * apart;
          const int inside = u >= 0 && u < w->size[0] && v >= 0 && v < w->size[1];
          tap->row[i] = inside ? image + u * w->step[0] + v * w->step[1] : band->zeros;
          meets |= inside;
        }
        tap->weights = (y * w->kernel[1] + x) * w->channels * TENON_PANEL;
        tap += meets;
      }
    band->taps[b] = tap - taps;
    band->depth[b] = (together ? w->kernel[1] : 1) * w->channels;
  }
}

static void multiply_band(const band_t *band, const float *panel, float *c, int64_t step,
                          int64_t columns) {
  for (int64_t b = 0; b < band->blocks; ++b) {
    const int64_t begin = begin_of(band, b), some = begin_of(band, b + 1) - begin;
    window_blocks[some - 1](band->tap + b * band->most, band->taps[b], band->depth[b], panel,
                            c + begin * step, step, columns);
  }
}
#else
typedef struct {
  const tenon_places_t *w;
  const float *image;
  int64_t first, count;
} band_t;

static int64_t floats_of_bands(const tenon_places_t *w, int64_t places) { return 0; }
static void begin_bands(band_t *band, const tenon_places_t *w, int64_t places, float *memory) {}

static void find_band(band_t *band, const tenon_places_t *w, const float *image, int64_t first,
                      int64_t count) {
  *band = (band_t){w, image, first, count};
}

/* Places `at` to `at` + count of a row of places. Each row of the kernel is a run of a place's row of
 * A, or each of its elements is, where the image ends or they are no neighbours in memory. */
static void place_block(const tenon_places_t *w, const float *image, const int64_t *at, int64_t count,
                        const float *panel, float *c, int64_t step, int64_t columns) {
  const int64_t top = at[0] * w->stride[0] - w->padding[0], down = w->dilation[0];
  const int64_t left = at[1] * w->stride[1] - w->padding[1], across = w->stride[1];
  const int64_t wide = w->kernel[1], apart = w->dilation[1], end = w->size[1];
  int64_t first_row = 0, last_row = w->kernel[0]; /* of the kernel's rows that meet the image */
  while (first_row < last_row && top + first_row * down < 0) ++first_row;
  while (first_row < last_row && top + (last_row - 1) * down >= w->size[0]) --last_row;
  const int inside = left >= 0 && left + (count - 1) * across + (wide - 1) * apart < end;
  const int64_t depth = wide * w->channels;
  panel += first_row * depth * TENON_PANEL;
  image += (top + first_row * down) * w->step[0];
  if (first_row < last_row && inside && (wide == 1 || apart * w->step[1] == w->channels)) {
    strided_blocks[count - 1](image + left * w->step[1], across * w->step[1], 1, panel, TENON_PANEL,
                              depth, last_row - first_row, down * w->step[0] - depth, c, step,
                              columns, 1);
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < columns; ++j) c[i * step + j] = 0;
  for (int64_t y = first_row; y < last_row; ++y, image += down * w->step[0])
    for (int64_t x = 0; x < wide; ++x, panel += w->channels * TENON_PANEL) {
      const int64_t begin = left + x * apart;
      const int64_t from = begin < 0 ? (across - 1 - begin) / across : 0;
      const int64_t to = begin < end ? smaller(count, (end - 1 - begin) / across + 1) : 0;
      if (from < to)
        strided_blocks[to - from - 1](image + (begin + from * across) * w->step[1],
                                      across * w->step[1], 1, panel, TENON_PANEL, w->channels, 1, 0,
                                      c + from * step, step, columns, 0);
    }
}

static void multiply_band(const band_t *band, const float *panel, float *c, int64_t step,
                          int64_t columns) {
  const tenon_places_t *w = band->w;
  /* Of a kernel of one element without padding a place's row of A is one run, whatever place it is. */
  const int one = w->kernel[0] * w->kernel[1] == 1 && w->padding[0] == 0 && w->padding[1] == 0;
  const int64_t down = w->stride[0] * w->step[0], along = w->stride[1] * w->step[1];
  const int64_t across = w->places[1];
  int64_t at[2] = {band->first / across, band->first % across};
  for (int64_t left = band->count; left > 0; at[0]++, at[1] = 0) {
    /* Blocks of equal height, or nearly: one of few rows costs as much as a full one. */
    int64_t run = smaller(across - at[1], left);
    for (int64_t blocks = (run + ROWS - 1) / ROWS; blocks > 0; --blocks) {
      const int64_t some = (run + blocks - 1) / blocks;
      if (one)
        strided_blocks[some - 1](band->image + at[0] * down + at[1] * along, along, 1, panel,
                                 TENON_PANEL, w->channels, 1, 0, c, step, columns, 1);
      else
        place_block(w, band->image, at, some, panel, c, step, columns);
      run -= some, left -= some, at[1] += some, c += some * step;
    }
  }
}
#endif

