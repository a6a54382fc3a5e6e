/* Runs the driver of products with few bits on memory that is just large enough, for a sanitizer to
 * look over; `CHECKS` are the calls of `check` for each of its kinds and numbers of rows. */
#include <stdio.h>

static uint32_t state;
static int64_t below(int64_t n) {
  state = state * 1103515245u + 12345u;
  return (state >> 8) % n;
}

static int is_four_bits, is_unsigned, by_rows, block;

static double weight(const uint8_t *b, const float *z, int64_t n, int64_t k, int64_t i, int64_t j) {
  if (!is_four_bits) {
    const uint8_t x = by_rows ? b[i * n + j] : b[j * k + i];
    return is_unsigned ? x : (int8_t)x;
  }
  const int64_t first = j / block * block, l = j - first;
  const int64_t columns = n - first < block ? n - first : block, half = columns / 2;
  const uint8_t *const row = b + first * k / 2 + i * half;
  const int x = columns == block ? row[l % half] >> l / half * 4 : row[l / 2] >> l % 2 * 4;
  const float *const scale = z + (i / 32 * n + j) * 2;
  return ((x & 15) - 8) * scale[0] + scale[1];
}

static void check(void (*multiply)(const tenon_matmul_t *, const tenon_four_bits_t *), int64_t m,
                  uint32_t seed) {
  state = seed * 977 + m;
  const int64_t n = is_four_bits ? 16 * (1 + below(14)) : 1 + below(by_rows ? 700 : 150);
  const int64_t k = is_four_bits ? 32 * (1 + below(5)) : 1 + below(200);
  const int64_t bytes = is_four_bits ? n * k / 2 : n * k, groups = k / 32;
  float *const a = malloc(m * k * 4), *const c = malloc(m * n * 4), *const z = malloc(groups * n * 8);
  uint8_t *const b = malloc(bytes);
  for (int64_t i = 0; i < m * k; ++i) a[i] = (below(2001) - 1000) / 500.0f;
  for (int64_t i = 0; i < bytes; ++i) b[i] = below(256);
  for (int64_t i = 0; i < groups * n * 2; ++i) z[i] = (below(200) - 100) / 100.0f;
  const tenon_four_bits_t weights = {z, 32, block};
  const tenon_matmul_t product = {
      .a = a, .b = b, .c = c, .kept = 1, .batch = 1, .m = m, .n = n, .k = k,
      .a_strides = {0, k, 1}, .b_strides = {0, by_rows ? n : 1, by_rows ? 1 : k},
      .c_strides = {0, n},
  };
  multiply(&product, is_four_bits ? &weights : NULL);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 1e-3;
      for (int64_t l = 0; l < k; ++l) {
        const double term = a[i * k + l] * weight(b, z, n, k, l, j);
        sum += term;
        size += fabs(term);
      }
      if (fabs(sum - c[i * n + j]) > 1e-5 * size) {
        printf("%d rows, %d x %d: %g, not %g\n", (int)m, (int)k, (int)n, c[i * n + j], sum);
        exit(1);
      }
    }
  free(a), free(b), free(c), free(z);
}

int main(void) {
  for (uint32_t seed = 1; seed < 9; ++seed) {
    CHECKS
  }
  return 0;
}
