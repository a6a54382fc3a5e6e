/* A driver of OpenCL's with one device that computes nothing. What is committed is over when the
 * test says so, with the state that it says. The driver counts what is alive. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct event {
  int32_t state; /* as the driver tells it: 1 running, 0 over, below 0 an error */
} event;

enum { MOST = 64 };

static int device, platform, context, queue;
static event *held[MOST]; /* events that run */
static int held_count = 0, holds = 0, events = 0, buffers = 0;
static int32_t next_state = 0, flush_result = 0;

/* What the test says, and asks. */

void hold(int on) {
  holds = on;
  for (; !on && held_count > 0; --held_count)
    held[held_count - 1]->state = next_state;
}

void end_with(int32_t state) {
  next_state = state;
}

void flush_with(int32_t result) {
  flush_result = result;
}

int live_events(void) {
  return events;
}

int live_buffers(void) {
  return buffers;
}

/* The driver, as far as the library asks. */

static int32_t give(const void *value, size_t length, size_t size, void *to, size_t *needed) {
  if (needed)
    *needed = length;
  if (to)
    memcpy(to, value, length < size ? length : size);
  return 0;
}

int32_t clGetPlatformIDs(uint32_t count, void **found, uint32_t *all) {
  if (found)
    found[0] = &platform;
  return all ? (*all = 1, 0) : 0;
}

int32_t clGetPlatformInfo(void *of, uint32_t about, size_t size, void *to, size_t *needed) {
  return give("OpenCL 1.2", 11, size, to, needed);
}

int32_t clGetDeviceIDs(void *of, uint64_t type, uint32_t count, void **found, uint32_t *all) {
  if (found)
    found[0] = &device;
  return all ? (*all = 1, 0) : 0;
}

int32_t clGetDeviceInfo(void *of, uint32_t about, size_t size, void *to, size_t *needed) {
  const void *of_platform = &platform;
  const uint64_t number = 4;
  if (about == 0x1031)
    return give(&of_platform, sizeof(of_platform), size, to, needed);
  if (about >= 0x102B && about <= 0x1030)
    return give("none", 5, size, to, needed);
  return give(&number, sizeof(number), size, to, needed);
}

void *clCreateContext(const void *a, uint32_t n, void *d, void *f, void *u, int32_t *code) {
  return *code = 0, &context;
}

void *clCreateCommandQueue(void *of, void *on, uint64_t how, int32_t *code) {
  return *code = 0, &queue;
}

void *clCreateBuffer(void *of, uint64_t how, size_t nbytes, void *host, int32_t *code) {
  ++buffers;
  return *code = 0, malloc(1);
}

int32_t clReleaseMemObject(void *buffer) {
  --buffers;
  free(buffer);
  return 0;
}

int32_t clEnqueueWriteBuffer(
    void *q, void *to, uint32_t b, size_t o, size_t n, const void *from, uint32_t w, void *l,
    void *e) {
  return 0;
}

int32_t clEnqueueMarkerWithWaitList(void *q, uint32_t count, void *list, event **made) {
  if (!made)
    return 0;
  *made = malloc(sizeof(event));
  (*made)->state = holds ? 1 : next_state;
  if (holds)
    held[held_count++] = *made;
  ++events;
  return 0;
}

int32_t clFlush(void *q) {
  return flush_result;
}

int32_t clFinish(void *q) {
  return 0;
}

int32_t clWaitForEvents(uint32_t count, event **waited) {
  hold(0);
  return waited[0]->state < 0 ? -14 : 0;
}

int32_t clGetEventInfo(event *of, uint32_t about, size_t size, void *to, size_t *needed) {
  return give(&of->state, sizeof(of->state), size, to, needed);
}

int32_t clGetEventProfilingInfo(event *of, uint32_t about, size_t size, void *to, size_t *needed) {
  const uint64_t nanoseconds = 3000000000;
  return give(&nanoseconds, sizeof(nanoseconds), size, to, needed);
}

int32_t clReleaseEvent(event *of) {
  --events;
  free(of);
  return 0;
}

/* It has no kernels. */
#define NOT_THERE(name) \
  int32_t name(void) {  \
    return -59;         \
  }
NOT_THERE(clCreateProgramWithSource)
NOT_THERE(clCreateProgramWithBinary)
NOT_THERE(clBuildProgram)
NOT_THERE(clGetProgramBuildInfo)
NOT_THERE(clReleaseProgram)
NOT_THERE(clCreateKernel)
NOT_THERE(clSetKernelArg)
NOT_THERE(clReleaseKernel)
NOT_THERE(clGetKernelInfo)
NOT_THERE(clEnqueueNDRangeKernel)
NOT_THERE(clEnqueueReadBuffer)
NOT_THERE(clEnqueueCopyBuffer)
NOT_THERE(clEnqueueFillBuffer)
NOT_THERE(clGetExtensionFunctionAddressForPlatform)
