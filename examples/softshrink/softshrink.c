#include <stdint.h>

void softshrink(float *result, const float *x, double lambd, int64_t n) {
  const float width = (float)lambd;
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i)
    result[i] = x[i] > width ? x[i] - width : x[i] < -width ? x[i] + width : x[i] * 0;
}

void softshrink_backward(float *result, const float *grad, const float *x, double lambd, int64_t n) {
  const float width = (float)lambd;
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i)
    result[i] = x[i] >= -width && x[i] <= width ? 0 : grad[i];
}
