/* Runs an exported program, with ones as its inputs: it needs libtenon_rt and the C library alone.
 *
 * cc -O2 -Iinclude examples/run_program.c -Lbuild/runtime -ltenon_rt -o run_program
 * ./run_program model.tenon 100                        on this processor
 * ./run_program model.tenon 100 libtenon_opencl.so     on the device of a target's library */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tenon.h"

static tenon_status status;

static void check(int32_t code) {
  if (code != TENON_OK) {
    fprintf(stderr, "%s\n", status.text);
    exit(1);
  }
}

int main(int count, char **arguments) {
  tenon_program *program;
  if (count < 2)
    return fprintf(stderr, "usage: run_program FILE [RUNS [LIBRARY]]\n"), 2;
  const int runs = count > 2 ? atoi(arguments[2]) : 10;
  const tenon_options options = {sizeof(options), .library = count > 3 ? arguments[3] : NULL};
  check(tenon_open_program(arguments[1], &options, &program, &status));
  const size_t inputs = tenon_program_inputs(program, 0), outputs = tenon_program_outputs(program, 0);
  tenon_tensor *in = calloc(inputs + 1, sizeof(*in)), *out = calloc(outputs + 1, sizeof(*out));
  for (size_t k = 0; k < inputs; ++k) {
    tenon_tensor_info info = {.size = sizeof(info)};
    check(tenon_describe_input(program, 0, k, &info, &status));
    printf("\ninput %s: dtype %d, sizes", info.name, info.dtype);
    in[k] = (tenon_tensor){.size = sizeof(*in), .dtype = info.dtype, .rank = info.rank};
    size_t elements = 1;
    for (int d = 0; d < info.rank; ++d) /* 1 where it may be 0 and more */
      elements *= in[k].sizes[d] = info.least[d] > 0 ? info.least[d] : info.greatest[d] > 0,
          printf(" %lld", (long long)in[k].sizes[d]);
    in[k].nbytes = elements * 16; /* no element has more */
    in[k].data = calloc(elements + 1, 16);
    for (size_t j = 0; j < elements && info.dtype == TENON_FLOAT32; ++j)
      ((float *)in[k].data)[j] = 1;
    for (size_t j = 0; j < elements && info.dtype == TENON_INT64; ++j)
      ((int64_t *)in[k].data)[j] = 1;
  }
  for (size_t k = 0; k < outputs; ++k)
    out[k].size = sizeof(*out);
  struct timespec start, end;
  for (int run = 0; run <= runs; ++run) { /* the first one also allocates the outputs */
    check(tenon_run(program, 0, in, inputs, out, outputs, &status));
    clock_gettime(CLOCK_MONOTONIC, run == 0 ? &start : &end);
  }
  const double ns = (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
  printf("\n%s: %.1f us a run\n", tenon_method_name(program, 0), runs > 0 ? ns / 1e3 / runs : 0);
  for (size_t k = 0; k < outputs && out[k].dtype == TENON_FLOAT32 && out[k].nbytes >= 4; ++k)
    printf("output %zu begins with %g\n", k, *(float *)out[k].data);
  tenon_close_program(program);
  return 0;
}
