/* Discrete Fourier transforms of rows, by mixed radix: see fourier.yaml. A transform of n = p m
 * numbers is p transforms of every p-th one, which butterflies of p join (Cooley and Tukey). */
#include <stdint.h>

enum { MOST_PRIME = 127, MOST_FACTORS = 64 };

typedef struct {
  float re, im;
} number;

static inline number times(number a, number b) {
  const number found = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  return found;
}
static inline number plus(number a, number b) {
  const number found = {a.re + b.re, a.im + b.im};
  return found;
}
static inline number minus(number a, number b) {
  const number found = {a.re - b.re, a.im - b.im};
  return found;
}

static void by_two(number *out, int64_t m, const number *turns, int64_t step) {
  for (int64_t k = 0; k < m; ++k) {
    const number first = out[k], second = times(out[k + m], turns[k * step]);
    out[k] = plus(first, second);
    out[k + m] = minus(first, second);
  }
}

static void by_four(number *out, int64_t m, const number *turns, int64_t step) {
  const float quarter = turns[m * step].im; /* of a turn: i or -i */
  for (int64_t k = 0; k < m; ++k) {
    const number a = out[k], b = times(out[k + m], turns[k * step]);
    const number c = times(out[k + 2 * m], turns[2 * k * step]);
    const number d = times(out[k + 3 * m], turns[3 * k * step]);
    const number even = plus(a, c), odd = minus(a, c), sum = plus(b, d), rest = minus(b, d);
    const number turned = {-quarter * rest.im, quarter * rest.re};
    out[k] = plus(even, sum);
    out[k + m] = plus(odd, turned);
    out[k + 2 * m] = minus(even, sum);
    out[k + 3 * m] = minus(odd, turned);
  }
}

static void by_any(number *out, int64_t p, int64_t m, const number *turns, int64_t step) {
  const int64_t n = p * m * step;
  number kept[MOST_PRIME];
  for (int64_t k = 0; k < m; ++k) {
    for (int64_t q = 0; q < p; ++q) kept[q] = out[k + q * m];
    for (int64_t r = 0; r < p; ++r) {
      const int64_t place = k + r * m, turn = place * step;
      number sum = kept[0];
      for (int64_t q = 1, at = turn % n; q < p; ++q, at = (at + turn) % n)
        sum = plus(sum, times(kept[q], turns[at]));
      out[place] = sum;
    }
  }
}

/* Of `factors[0]` times the product of the others numbers, which lie `step` apart. */
static void transform(number *out, const number *x, const int64_t *factors, int64_t n,
                      const number *turns, int64_t step) {
  const int64_t p = factors[0], m = n / p;
  for (int64_t q = 0; q < p; ++q) {
    if (m == 1)
      out[q] = x[q * step];
    else
      transform(out + q * m, x + q * step, factors + 1, m, turns, step * p);
  }
  if (p == 2)
    by_two(out, m, turns, step);
  else if (p == 4)
    by_four(out, m, turns, step);
  else
    by_any(out, p, m, turns, step);
}

void fourier(float *out, const float *x, const float *turns, int64_t rows, int64_t n) {
  int64_t factors[MOST_FACTORS], count = 0;
  for (int64_t left = n, p = 4; left > 1;) {
    if (left % p == 0)
      factors[count++] = p, left /= p;
    else
      p = p == 4 ? 2 : p == 2 ? 3 : p + 2;
  }
  if (count == 0) factors[0] = 1;
#pragma omp parallel for schedule(static) if (rows * n >= 1 << 13)
  for (int64_t row = 0; row < rows; ++row)
    transform((number *)out + row * n, (const number *)x + row * n, factors, n,
              (const number *)turns, 1);
}
