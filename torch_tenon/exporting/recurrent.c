/* The steps of one recurrent layer in one direction: see recurrent.yaml. */
#include <stdint.h>

enum { TANH, RELU, LSTM, GRU };

/* e to the x by a polynomial, to 2 ULP, so that the compiler makes vectors of it. */
static inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  const float scaled = x * 1.44269504f;
  const int32_t whole = (int32_t)(scaled + (scaled < 0 ? -0.5f : 0.5f));
  const float n = (float)whole, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const union { int32_t bits; float value; } power = {(whole + 127) << 23};
  return y * power.value;
}

static inline float sigmoid(float x) {
  const float y = 1.0f / (1.0f + exponential(-x));
  return x != x ? x : y;
}

static inline float hyperbolic(float x) {
  const float size = x < 0 ? -x : x, square = x * x;
  /* Near zero 1 - 2 / (1 + e^2x) has lost its last bits. */
  float small = -5.70498872745e-3f;
  small = small * square + 2.06390887954e-2f;
  small = small * square - 5.37397155531e-2f;
  small = small * square + 1.33314422036e-1f;
  small = small * square - 3.33332819422e-1f;
  small = small * square * x + x;
  const float large = 1.0f - 2.0f / (1.0f + exponential(2.0f * size));
  const float y = size < 0.625f ? small : x < 0 ? -large : large;
  return x != x ? x : y;
}

/* Four rows of a matrix times a vector. */
static inline void four_dots(const float *rows, int64_t size, const float *x, float *to) {
  const float *a = rows, *b = a + size, *c = b + size, *d = c + size;
  float p = 0, q = 0, r = 0, s = 0;
#pragma omp simd reduction(+ : p, q, r, s)
  for (int64_t k = 0; k < size; ++k) {
    p += a[k] * x[k];
    q += b[k] * x[k];
    r += c[k] * x[k];
    s += d[k] * x[k];
  }
  to[0] = p, to[1] = q, to[2] = r, to[3] = s;
}

static inline float dot(const float *row, int64_t size, const float *x) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < size; ++k) sum += row[k] * x[k];
  return sum;
}

enum { UNITS = 16 }; /* computed at a time, all of their gates */

/* Units first to last of one element of the batch at one step. */
static void units(int64_t kind, int64_t first, int64_t last, int64_t size, const float *gates,
                  const float *weight, const float *bias, const float *before, float *cell,
                  float *after) {
  const int64_t parts = kind == LSTM ? 4 : kind == GRU ? 3 : 1, count = last - first;
  float sums[4][UNITS];
  for (int64_t part = 0; part < parts; ++part) {
    const float *rows = weight + (part * size + first) * size;
    int64_t u = 0;
    for (; u + 4 <= count; u += 4) four_dots(rows + u * size, size, before, sums[part] + u);
    for (; u < count; ++u) sums[part][u] = dot(rows + u * size, size, before);
    for (u = 0; u < count; ++u) sums[part][u] += bias[part * size + first + u];
    if (kind != GRU || part < 2)
      for (u = 0; u < count; ++u) sums[part][u] += gates[part * size + first + u];
  }
  for (int64_t u = 0; u < count; ++u) {
    const int64_t at = first + u;
    if (kind == LSTM) {
      const float kept = sigmoid(sums[1][u]) * cell[at];
      cell[at] = kept + sigmoid(sums[0][u]) * hyperbolic(sums[2][u]);
      after[at] = sigmoid(sums[3][u]) * hyperbolic(cell[at]);
    } else if (kind == GRU) {
      const float reset = sigmoid(sums[0][u]), update = sigmoid(sums[1][u]);
      const float fresh = hyperbolic(gates[2 * size + at] + reset * sums[2][u]);
      after[at] = fresh + update * (before[at] - fresh);
    } else if (kind == TANH) {
      after[at] = hyperbolic(sums[0][u]);
    } else {
      after[at] = sums[0][u] < 0 ? 0 : sums[0][u];
    }
  }
}

void recurrent_steps(float *out, float *hidden, float *cell, const float *gates,
                     const float *weight, const float *bias, const float *first_hidden,
                     const float *first_cell, int64_t steps, int64_t batch, int64_t size,
                     int64_t kind, int64_t reversed) {
  const int64_t parts = kind == LSTM ? 4 : kind == GRU ? 3 : 1;
  const int64_t pieces = (size + UNITS - 1) / UNITS;
  for (int64_t k = 0; k < batch * size; ++k) cell[k] = first_cell[k];
  const float *before = first_hidden;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t t = reversed ? steps - 1 - step : step;
    float *after = out + t * batch * size;
    const float *now = gates + t * batch * parts * size;
#pragma omp parallel for schedule(static) if (batch * parts * size * size >= 1 << 17)
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t first = piece * UNITS, last = first + UNITS < size ? first + UNITS : size;
      for (int64_t n = 0; n < batch; ++n)
        units(kind, first, last, size, now + n * parts * size, weight, bias, before + n * size,
              cell + n * size, after + n * size);
    }
    before = after;
  }
  for (int64_t k = 0; k < batch * size; ++k) hidden[k] = before[k];
}
