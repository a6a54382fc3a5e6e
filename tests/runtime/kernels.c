/* A kernel as a plan's file has it. */
#include <stdint.h>

__attribute__((visibility("default"))) void add_one(
    void *const *pointers, const int64_t *numbers, int64_t *status) {
  const float *x = pointers[0];
  float *result = pointers[1];
  for (int64_t k = 0; k < numbers[0]; ++k) {
    result[k] = x[k] + 1;
    if (status && x[k] < 0) {
      status[0] = 1;
      status[1] = 7;
      status[2] = 5;
    }
  }
}
