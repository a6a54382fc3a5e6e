/* The steps of one recurrent layer in one direction: see recurrent.yaml. */
#include <stdint.h>

enum { TANH, RELU, LSTM, GRU };

/* Weights lie as (pieces, size, parts, UNITS): for each number of the hidden state those of all gates
 * of a piece's units side by side, so that they are read in order. */
enum { UNITS = 16, MOST_PARTS = 4 };
#if defined(__AVX512F__)
#define LANES 16
#define MOST_ROWS 4 /* of a batch that are summed together: their sums are in registers */
#elif defined(__AVX__)
#define LANES 8
#define MOST_ROWS 1
#else
#define LANES 4
#define MOST_ROWS 1
#endif
typedef float lanes_t __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t bits_t __attribute__((vector_size(LANES * 4)));
#ifdef __clang__
#define CONTRACTED noinline
#pragma clang fp contract(fast)
#else
#define CONTRACTED noinline, optimize("fp-contract=fast")
#endif

#define INLINE static inline __attribute__((always_inline))
#define ALL(x) ((lanes_t){0} + (x))

/* `first` in the lanes where a comparison holds, else `second`. */
INLINE lanes_t choose(bits_t holds, lanes_t first, lanes_t second) {
  return (lanes_t)(((bits_t)first & holds) | ((bits_t)second & ~holds));
}

/* e to the x by a polynomial, to 2 ULP. */
INLINE lanes_t exponential(lanes_t x) {
  x = choose(x < -87.0f, ALL(-87.0f), x);
  x = choose(x > 88.0f, ALL(88.0f), x);
  const lanes_t scaled = x * 1.44269504f;
  const bits_t whole =
      __builtin_convertvector(scaled + choose(scaled < 0, ALL(-0.5f), ALL(0.5f)), bits_t);
  const lanes_t n = __builtin_convertvector(whole, lanes_t);
  const lanes_t r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  lanes_t y = ALL(1.9875691500e-4f);
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  return y * (lanes_t)((whole + 127) << 23);
}

INLINE lanes_t sigmoid(lanes_t x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE lanes_t hyperbolic(lanes_t x) {
  const lanes_t size = choose(x < 0, -x, x), square = x * x;
  /* Near zero 1 - 2 / (1 + e^2x) has lost its last bits. */
  lanes_t small = ALL(-5.70498872745e-3f);
  small = small * square + 2.06390887954e-2f;
  small = small * square - 5.37397155531e-2f;
  small = small * square + 1.33314422036e-1f;
  small = small * square - 3.33332819422e-1f;
  small = small * square * x + x;
  const lanes_t large = 1.0f - 2.0f / (1.0f + exponential(2.0f * size));
  return choose(size < 0.625f, small, choose(x < 0, -large, large));
}

/* Sums over the hidden states of R rows for one piece. A sum waits for the one before it, so those
 * of STEPS numbers of the state are apart. */
#define SUMS(PARTS, R, STEPS)                                                                      \
  static __attribute__((CONTRACTED)) void sums_##PARTS##_##R(const float *weight, int64_t size,    \
                                                             const float *before, float *to) {     \
    enum { VECTORS = PARTS * UNITS / LANES };                                                      \
    lanes_t sum[R][STEPS][VECTORS];                                                                \
    _Pragma("GCC unroll 4") for (int r = 0; r < R; ++r)                                            \
        _Pragma("GCC unroll 4") for (int s = 0; s < STEPS; ++s)                                    \
            _Pragma("GCC unroll 16") for (int v = 0; v < VECTORS; ++v) sum[r][s][v] = (lanes_t){0}; \
    int64_t k = 0;                                                                                 \
    for (; k + STEPS <= size; k += STEPS)                                                          \
      _Pragma("GCC unroll 4") for (int s = 0; s < STEPS; ++s)                                      \
          _Pragma("GCC unroll 16") for (int v = 0; v < VECTORS; ++v) {                             \
        const lanes_t w = *(const lanes_t *)(weight + (k + s) * PARTS * UNITS + v * LANES);        \
        _Pragma("GCC unroll 4") for (int r = 0; r < R; ++r) sum[r][s][v] +=                        \
            before[r * size + k + s] * w;                                                          \
      }                                                                                            \
    for (; k < size; ++k)                                                                          \
      _Pragma("GCC unroll 16") for (int v = 0; v < VECTORS; ++v)                                   \
          _Pragma("GCC unroll 4") for (int r = 0; r < R; ++r) sum[r][0][v] +=                      \
          before[r * size + k] * *(const lanes_t *)(weight + k * PARTS * UNITS + v * LANES);       \
    _Pragma("GCC unroll 4") for (int r = 0; r < R; ++r)                                            \
        _Pragma("GCC unroll 16") for (int v = 0; v < VECTORS; ++v) {                               \
      _Pragma("GCC unroll 4") for (int s = 1; s < STEPS; ++s) sum[r][0][v] += sum[r][s][v];        \
      *(lanes_t *)(to + r * MOST_PARTS * UNITS + v * LANES) = sum[r][0][v];                        \
    }                                                                                              \
  }
SUMS(1, 1, 4)
SUMS(3, 1, 1)
SUMS(4, 1, 1)
#if MOST_ROWS == 4
SUMS(1, 4, 1)
SUMS(3, 4, 1)
SUMS(4, 4, 1)
#else
#define sums_1_4 sums_1_1
#define sums_3_4 sums_3_1
#define sums_4_4 sums_4_1
#endif

/* What a piece's units become, from arrays of UNITS. */
INLINE void become(int64_t kind, const float *sums, const float *given, const float *before,
                   float *cell, float *after) {
#define AT(x) (*(const lanes_t *)((x) + u))
  const float *in = sums, *forget = in + UNITS, *third = forget + UNITS, *out = third + UNITS;
  for (int u = 0; u < UNITS; u += LANES) {
    lanes_t y;
    if (kind == LSTM) {
      const lanes_t kept =
          sigmoid(AT(forget)) * AT(cell) + sigmoid(AT(in)) * hyperbolic(AT(third));
      *(lanes_t *)(cell + u) = kept;
      y = sigmoid(AT(out)) * hyperbolic(kept);
    } else if (kind == GRU) {
      const lanes_t fresh = hyperbolic(AT(given) + sigmoid(AT(in)) * AT(third));
      y = fresh + sigmoid(AT(forget)) * (AT(before) - fresh);
    } else if (kind == TANH) {
      y = hyperbolic(AT(in));
    } else {
      y = choose(AT(in) < 0, ALL(0), AT(in));
    }
    *(lanes_t *)(after + u) = y;
  }
}

/* Units `first` to `last` of one element of the batch, whose sums are there. */
static void units(int64_t kind, int64_t first, int64_t last, int64_t size, float *sums,
                  const float *gates, const float *bias, const float *before, float *cell,
                  float *after) {
  const int64_t parts = kind == LSTM ? 4 : kind == GRU ? 3 : 1, count = last - first;
  float given[UNITS] = {0}, earlier[UNITS] = {0}, cells[UNITS] = {0}, fresh[UNITS];
  for (int64_t part = 0; part < parts; ++part) {
    float *to = sums + part * UNITS;
    const float *add = bias + part * size + first, *input = gates + part * size + first;
    for (int64_t u = 0; u < count; ++u) to[u] += add[u];
    if (kind != GRU || part < 2)
      for (int64_t u = 0; u < count; ++u) to[u] += input[u];
  }
  if (kind == LSTM)
    for (int64_t u = 0; u < count; ++u) cells[u] = cell[first + u];
  if (kind == GRU)
    for (int64_t u = 0; u < count; ++u)
      given[u] = gates[2 * size + first + u], earlier[u] = before[first + u];
  switch (kind) {
    case LSTM: become(LSTM, sums, given, earlier, cells, fresh); break;
    case GRU: become(GRU, sums, given, earlier, cells, fresh); break;
    case TANH: become(TANH, sums, given, earlier, cells, fresh); break;
    default: become(RELU, sums, given, earlier, cells, fresh);
  }
  for (int64_t u = 0; u < count; ++u) after[first + u] = fresh[u];
  if (kind == LSTM)
    for (int64_t u = 0; u < count; ++u) cell[first + u] = cells[u];
}

/* `batch_sizes` says how many elements of the batch have each step, the longest ones first; rows of
 * `gates` and `out` are those of all steps, one after another. */
void recurrent_steps(float *out, float *hidden, float *cell, const float *gates,
                     const float *weight, const float *bias, const float *first_hidden,
                     const float *first_cell, const int64_t *batch_sizes, int64_t rows,
                     int64_t steps, int64_t batch, int64_t size, int64_t kind, int64_t reversed) {
  const int64_t parts = kind == LSTM ? 4 : kind == GRU ? 3 : 1;
  const int64_t pieces = (size + UNITS - 1) / UNITS;
  void (*const one)(const float *, int64_t, const float *, float *) =
      parts == 4 ? sums_4_1 : parts == 3 ? sums_3_1 : sums_1_1;
  void (*const several)(const float *, int64_t, const float *, float *) =
      parts == 4 ? sums_4_4 : parts == 3 ? sums_3_4 : sums_1_4;
  for (int64_t k = 0; k < batch * size; ++k) cell[k] = first_cell[k], hidden[k] = first_hidden[k];
  const float *before = first_hidden;
  int64_t earlier = batch, row = reversed ? rows : 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t t = reversed ? steps - 1 - step : step, count = batch_sizes[t];
    const int64_t later = step + 1 == steps ? 0 : batch_sizes[reversed ? t - 1 : t + 1];
    row -= reversed ? count : 0;
    float *after = out + row * size;
    const float *now = gates + row * parts * size;
    const int64_t going_on = earlier < count ? earlier : count;
#pragma omp parallel for schedule(static) if (count * parts * size * size >= 1 << 17)
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t first = piece * UNITS, last = first + UNITS < size ? first + UNITS : size;
      const float *of_piece = weight + piece * size * parts * UNITS;
      /* Backwards, elements begin at their own ends. */
      for (int64_t n = 0, many; n < count; n += many) {
        float sums[MOST_ROWS * MOST_PARTS * UNITS];
        const float *from = (n < going_on ? before : first_hidden) + n * size;
        const int64_t left = (n < going_on ? going_on : count) - n;
        many = left >= MOST_ROWS ? MOST_ROWS : 1;
        (many == 1 ? one : several)(of_piece, size, from, sums);
        for (int64_t r = 0; r < many; ++r)
          units(kind, first, last, size, sums + r * MOST_PARTS * UNITS,
                now + (n + r) * parts * size, bias, from + r * size, cell + (n + r) * size,
                after + (n + r) * size);
      }
    }
    for (int64_t k = later * size; k < count * size; ++k) hidden[k] = after[k];
    before = after;
    earlier = count;
    row += reversed ? 0 : count;
  }
}
