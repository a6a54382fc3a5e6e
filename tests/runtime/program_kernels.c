/* Kernels as a program's shared object has them. */
#include <sched.h>
#include <stdint.h>

#include "tenon.h"

#define KERNEL __attribute__((visibility("default")))

KERNEL const tenon_host_t *tenon_host;
KERNEL const tenon_products_t *tenon_products;

/* result = x * w + n over rows of 4. */
KERNEL void scale(void *const *a, const int64_t *s, int64_t *status) {
  const float *x = a[0], *w = a[1];
  float *result = a[2];
  (void)status;
  if (tenon_products &&
      tenon_products->multiply(tenon_products->context, tenon_host, s, sizeof(*s)) == 0)
    return;
  for (int64_t k = 0; k < 4 * s[0]; ++k)
    result[k] = x[k] * w[k % 4] + (float)s[1];
}

/* sum += x; result = sum. */
KERNEL void accumulate(void *const *a, const int64_t *s, int64_t *status) {
  float *sum = a[0], *result = a[2];
  const float *x = a[1];
  for (int64_t k = 0; k < s[0]; ++k) {
    result[k] = sum[k] += x[k];
    if (status && x[k] < 0) {
      status[0] = 1;
      status[1] = 7;
      status[2] = 5;
    }
  }
}

/* The same, which says in x[1] that it has begun, and goes on when x[3] is no 0. */
KERNEL void hold(void *const *a, const int64_t *s, int64_t *status) {
  float *sum = a[0];
  volatile float *x = a[1];
  sum[0] += 1;
  x[1] = 1;
  while (x[3] == 0)
    sched_yield();
  sum[0] -= 1;
  accumulate(a, s, status);
}

/* result = the symbol, from the thread that has that place. */
typedef struct {
  const int64_t *symbol;
  float *result;
  int64_t count;
} share;

static void fill(void *data) {
  const share *all = data;
  for (int64_t k = tenon_host->thread_number(); k < all->count; k += tenon_host->threads())
    all->result[k] = (float)*all->symbol;
}

KERNEL void spread(void *const *a, const int64_t *s, int64_t *status) {
  share all = {a[0], a[1], s[0]};
  (void)status;
  tenon_host->parallel(fill, &all, 0);
}

/* result = how many threads kernels may have. */
KERNEL void most_threads(void *const *a, const int64_t *s, int64_t *status) {
  *(int64_t *)a[0] = tenon_host->most_threads();
  (void)s;
  (void)status;
}
