/* A toy accelerator in C: memory of its own, a queue, and one kernel. */

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tenon.h"

typedef struct command command;
struct command {
  void (*run)(const command *);
  command *next;
  int64_t numbers[3];
  tenon_work work;
  void *data;
  void *memory[]; /* what the places are */
};

static command *first, **end = &first; /* what is enqueued */
static _Atomic uint64_t done;          /* the latest ticket; any thread may ask for it */

static int32_t fail(tenon_status *status, tenon_code code, const char *text) {
  status->code = code;
  snprintf(status->text, sizeof(status->text), "%s", text);
  return code;
}

/* What the machine can do. */

static void move(const command *c) {
  memmove(c->memory[0], c->memory[1], (size_t)c->numbers[0]);
}

static void run_on_host(const command *c) {
  c->work(c->data, c->memory);
}

static void matmul(const command *c) {
  float *result = c->memory[0];
  const float *a = c->memory[1], *b = c->memory[2];
  const int64_t rows = c->numbers[0], length = c->numbers[1], columns = c->numbers[2];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < length; ++k)
        sum += a[i * length + k] * b[k * columns + j];
      result[i * columns + j] = sum;
    }
}

/* Memory: a handle is an address here, which the toy alone knows. */

static uint64_t total_memory(void *context, int32_t device) {
  return (uint64_t)1 << 30;
}

static int32_t allocate(
    void *context, int32_t device, uint64_t nbytes, uint64_t *handle, tenon_status *status) {
  void *made = nbytes > (uint64_t)1 << 30 ? NULL : aligned_alloc(512, (nbytes + 511) / 512 * 512);
  *handle = (uintptr_t)made;
  return made ? TENON_OK : fail(status, TENON_OUT_OF_MEMORY, "the toy has 1 GiB");
}

static void release(void *context, int32_t device, uint64_t handle) {
  free((void *)(uintptr_t)handle);
}

static void *address(tenon_place place) {
  return place.handle ? (char *)(uintptr_t)place.handle + place.offset : NULL;
}

/* The queue: a list, of which nothing runs before it is committed. */

static command *enqueue(void (*run)(const command *), const tenon_place *places, size_t count) {
  command *made = calloc(1, sizeof(command) + count * sizeof(void *));
  if (!made)
    return NULL;
  made->run = run;
  for (size_t k = 0; k < count; ++k)
    made->memory[k] = places ? address(places[k]) : NULL;
  *end = made;
  end = &made->next;
  return made;
}

static int32_t copy(
    void *context, int32_t device, const tenon_end *to, const tenon_end *from, uint64_t nbytes,
    tenon_status *status) {
  command *c = enqueue(move, NULL, 2);
  if (!c)
    return fail(status, TENON_OUT_OF_MEMORY, "no memory for a command");
  c->memory[0] = to->host ? to->host : address(to->place);
  c->memory[1] = from->host ? from->host : address(from->place);
  c->numbers[0] = (int64_t)nbytes;
  return TENON_OK;
}

static int32_t launch(
    void *context, int32_t device, const tenon_launch *asked, tenon_status *status) {
  void (*run)(const command *) = (void (*)(const command *))(uintptr_t)asked->kernel;
  if (asked->place_count != 3 || asked->number_count != 3)
    return fail(status, TENON_ERROR, "matmul takes three matrices and three sizes");
  command *c = enqueue(run, asked->places, asked->place_count);
  if (!c)
    return fail(status, TENON_OUT_OF_MEMORY, "no memory for a command");
  memcpy(c->numbers, asked->numbers, sizeof(c->numbers));
  return TENON_OK;
}

static int32_t call(
    void *context, int32_t device, tenon_work work, void *data, const tenon_place *places,
    size_t count, tenon_status *status) {
  command *c = enqueue(run_on_host, places, count);
  if (!c)
    return fail(status, TENON_OUT_OF_MEMORY, "no memory for a command");
  c->work = work;
  c->data = data;
  return TENON_OK;
}

static int32_t commit(void *context, int32_t device, uint64_t *ticket, tenon_status *status) {
  *ticket = done + (first != NULL);
  for (command *c = first; c; c = first) {
    c->run(c);
    first = c->next;
    free(c);
  }
  end = &first;
  done = *ticket;
  return TENON_OK;
}

static int32_t passed(void *context, int32_t device, uint64_t ticket) {
  return ticket <= done;
}

static int32_t wait(void *context, int32_t device, uint64_t ticket, tenon_status *status) {
  return TENON_OK; /* `commit` has done it all */
}

/* Kernels: another machine would take `code`, and find `entry` in it. */

static int32_t load(
    void *context, const void *code, uint64_t nbytes, const char *entry, uint64_t *kernel,
    tenon_status *status) {
  if (strcmp(entry, "matmul") != 0)
    return fail(status, TENON_UNSUPPORTED, "the toy has one kernel, matmul");
  *kernel = (uintptr_t)matmul;
  return TENON_OK;
}

const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {
  static const tenon_target_functions functions = {
      .size = sizeof(tenon_target_functions),
      .name = "toy",
      .facts = "The toy: one kernel, and memory that is the host's in secret",
      .devices = 1,
      .total_memory = total_memory,
      .allocate = allocate,
      .release = release,
      .copy = copy,
      .commit = commit,
      .passed = passed,
      .wait = wait,
      .launch = launch,
      .load = load,
      .call = call,
  };
  if (interface == TENON_INTERFACE)
    return &functions;
  fail(status, TENON_UNSUPPORTED, "the toy was compiled for another version of the interface");
  return NULL;
}
