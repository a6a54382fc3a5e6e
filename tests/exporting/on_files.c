/* Runs a program's first method on raw files: PROGRAM FOLDER, with FOLDER/in0, in1, ... of the
 * inputs' bytes; the outputs' go to FOLDER/out0, ... Dynamic sizes are the least. */
#include <stdio.h>
#include <stdlib.h>

#include "tenon.h"

static void *bytes_of(const char *folder, size_t k, uint64_t *nbytes) {
  char path[1024];
  snprintf(path, sizeof(path), "%s/in%zu", folder, k);
  FILE *file = fopen(path, "rb");
  if (file == NULL) exit(2);
  fseek(file, 0, SEEK_END);
  *nbytes = (uint64_t)ftell(file);
  rewind(file);
  void *data = aligned_alloc(64, (*nbytes + 64) / 64 * 64);
  if (fread(data, 1, *nbytes, file) != *nbytes) exit(2);
  fclose(file);
  return data;
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  tenon_status status;
  tenon_program *program;
  if (tenon_open_program(arguments[1], NULL, &program, &status) != TENON_OK) {
    fprintf(stderr, "%s\n", status.text);
    return 1;
  }
  const size_t ins = tenon_program_inputs(program, 0), outs = tenon_program_outputs(program, 0);
  tenon_tensor in[8] = {{0}}, out[8] = {{0}};
  for (size_t k = 0; k < ins; ++k) {
    tenon_tensor_info info = {.size = sizeof(info)};
    tenon_describe_input(program, 0, k, &info, &status);
    in[k].size = sizeof(*in);
    in[k].dtype = info.dtype;
    in[k].rank = info.rank;
    for (int d = 0; d < info.rank; ++d) in[k].sizes[d] = info.least[d];
    in[k].data = bytes_of(arguments[2], k, &in[k].nbytes);
  }
  for (size_t k = 0; k < outs; ++k) out[k].size = sizeof(*out);
  if (tenon_run(program, 0, in, ins, out, outs, &status) != TENON_OK) {
    fprintf(stderr, "%s\n", status.text);
    return 1;
  }
  for (size_t k = 0; k < outs; ++k) {
    char path[1024];
    snprintf(path, sizeof(path), "%s/out%zu", arguments[2], k);
    FILE *file = fopen(path, "wb");
    fwrite(out[k].data, 1, out[k].nbytes, file);
    fclose(file);
    tenon_free(out[k].data);
  }
  tenon_close_program(program);
  return 0;
}
