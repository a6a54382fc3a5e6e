/* Runs the kernels of a plan one after the other: what stands between Python and them. A step is
 * its function, the slots of its pointers and the places of its sizes, as counted lists. */
typedef void (*kernel_t)(void *const *, const int64_t *, int64_t *);

void @NAME@(const int64_t *step, int64_t count, void *const *slots, const int64_t *sizes,
            int64_t *status) {
  void *pointers[256];
  int64_t numbers[64];
  for (int64_t k = 0; k < count; ++k) {
    kernel_t run = (kernel_t)(intptr_t)step[0];
    int64_t buffers = step[1], dims = step[2];
    step += 3;
    for (int64_t j = 0; j < buffers; ++j) pointers[j] = slots[step[j]];
    for (int64_t j = 0; j < dims; ++j) numbers[j] = sizes[step[buffers + j]];
    step += buffers + dims;
    run(pointers, numbers, status);
    if (status[0]) return;
  }
}
