/* tenon.h: the C interface of torch-tenon.
 *
 * It has two sides. A shared library that exports `tenon_target` is a target: the memory, the queue
 * and the kernels of some hardware. A program that links `libtenon_rt` runs plans on such a target,
 * without Python and without PyTorch.
 *
 * Functions that may fail return a `tenon_code`, and write the reason to their `tenon_status`.
 * Texts are UTF-8 and end with a zero. Sizes are bytes unless a field says otherwise.
 *
 * Structs that may grow begin with their size, as the side that filled it in was compiled. New
 * fields are added at the end. Who reads a struct takes what is beyond the size for zero.
 */
#ifndef TENON_H
#define TENON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes only where old and new libraries do not fit: a new field at the end is no such change. */
#define TENON_INTERFACE 1

#define TENON_EXPORT __attribute__((visibility("default")))

typedef enum tenon_code {
  TENON_OK = 0,
  TENON_ERROR = 1,         /* anything that no other code is for */
  TENON_OUT_OF_MEMORY = 2, /* the device has no such block left */
  TENON_UNSUPPORTED = 3,   /* this device or version cannot do it */
  TENON_DEVICE_LOST = 4,   /* nothing that the device holds can be relied on */
  TENON_DAMAGED = 5,       /* data from a file that is no such data */
  TENON_OUT_OF_RANGE = 6   /* an index that is beyond the end */
} tenon_code;

/* What became of a call. It is only written where the call failed. Who calls gives one: it is not
 * null. */
typedef struct tenon_status {
  int32_t code;    /* a tenon_code */
  char text[1020]; /* what failed, and what to do about it */
} tenon_status;

/* ------------------------------------------------------------------ what a target implements --- */

/* Where bytes are on a device: in a block that `allocate` gave, so far from its start. */
typedef struct tenon_place {
  uint64_t handle; /* 0: nowhere, as for a tensor without elements */
  uint64_t offset;
} tenon_place;

/* One end of a copy: memory of the host, or of the device. */
typedef struct tenon_end {
  void *host; /* an address of the host; null: the device's `place` */
  tenon_place place;
} tenon_end;

/* What comes next in a queue, where that is known. */
enum {
  TENON_NEXT_UNKNOWN = 0,
  TENON_NEXT_DEVICE = 1, /* another kernel of this device: there is no hurry to hand this one over */
  TENON_NEXT_HOST = 2    /* work of the host on what the device has made */
};

/* A kernel that is to run. All of it is read before `launch` returns, but for `status`. */
typedef struct tenon_launch {
  size_t size;
  uint64_t kernel; /* what `load` gave, or a number that the target's Python backend gave */
  const tenon_place *places;
  size_t place_count;
  const int64_t *numbers; /* a number of floating point is its bits as a double */
  size_t number_count;
  int64_t *status; /* memory of the host for what the kernel's checks find; null: it has none.
                    * It is zero now, and stays until the ticket of the next commit has passed. */
  size_t status_count; /* words */
  int32_t next;        /* one of TENON_NEXT_* */
} tenon_launch;

/* The device runs the host's code: `work(data, addresses)`, with an address for each place (null
 * for nowhere), by which the host reaches it. It does not fail. */
typedef void (*tenon_work)(void *data, void *const *addresses);

/* A target. `context` is given to each function as its first argument, `device` counts from 0.
 *
 * A queue is in order: what is enqueued runs after what was enqueued before. `copy`, `launch` and
 * `call` enqueue and do not wait; `commit` starts what was enqueued, without waiting. Where one of
 * them fails, what was enqueued before stays so. Of these four one runs at a time for a device. Any
 * other function may be called by any thread at any time. */
typedef struct tenon_target_functions {
  size_t size;
  const char *name;  /* in error messages and in `TENON_TARGET`; a word */
  const char *facts; /* lines "heading: fact" about the hardware, for `tenon doctor`; may be null */
  void *context;
  int32_t devices;     /* how many there are, at least 1 */
  int32_t host_memory; /* not 0: handles are addresses that the host reads and writes. Then nothing
                        * is enqueued, and the functions of the queue may be null. */

  /* Memory. Required. */

  /* The bytes that a device has in all. */
  uint64_t (*total_memory)(void *context, int32_t device);
  /* A block of so many bytes, aligned to 512. `handle` is any number but 0. */
  int32_t (*allocate)(
      void *context, int32_t device, uint64_t nbytes, uint64_t *handle, tenon_status *status);
  /* Takes a block back, of which nothing in the queue is left. */
  void (*release)(void *context, int32_t device, uint64_t handle);

  /* The queue. Required without `host_memory`. */

  /* Copies bytes: from the host, to the host, or within the device; never from host to host. Memory
   * of the host stays until the ticket of the next commit has passed. */
  int32_t (*copy)(
      void *context,
      int32_t device,
      const tenon_end *to,
      const tenon_end *from,
      uint64_t nbytes,
      tenon_status *status);
  /* Starts what was enqueued since the last commit, if anything was. `ticket` is a number that is
   * not smaller than those before: the device passes it when all of that has run. Where nothing was
   * enqueued it is that of the last commit. */
  int32_t (*commit)(void *context, int32_t device, uint64_t *ticket, tenon_status *status);
  /* 1 where the device has passed a ticket, well or not; else 0. It does not wait. */
  int32_t (*passed)(void *context, int32_t device, uint64_t ticket);
  /* Waits until the device has passed a ticket. It fails where something has failed that the commit
   * of this ticket started, each time that it is called with that ticket; not for what failed in
   * another commit. */
  int32_t (*wait)(void *context, int32_t device, uint64_t ticket, tenon_status *status);

  /* Optional: null where the hardware has no such thing. */

  /* When a ticket passed: seconds of a clock that all devices share. Asked once it has, and before
   * it is forgotten. Without it, the host's clock when somebody first saw that it had. */
  double (*seconds)(void *context, int32_t device, uint64_t ticket);
  /* Nobody asks for a ticket any more. The device may not have passed it yet. */
  void (*forget)(void *context, int32_t device, uint64_t ticket);
  /* Enqueues a kernel. Without it the target runs no kernels, and everything runs on the host. */
  int32_t (*launch)(
      void *context, int32_t device, const tenon_launch *launch, tenon_status *status);
  /* A kernel of a file's bytes, for all devices: the function `entry` in a binary, or in a source
   * that the driver compiles. `kernel` is any number but 0. */
  int32_t (*load)(
      void *context,
      const void *code,
      uint64_t nbytes,
      const char *entry,
      uint64_t *kernel,
      tenon_status *status);
  /* Lets a kernel go, of which nothing in a queue is left. */
  void (*unload)(void *context, uint64_t kernel);
  /* Enqueues work of the host on the device's memory. Without it the host works on copies. */
  int32_t (*call)(
      void *context,
      int32_t device,
      tenon_work work,
      void *data,
      const tenon_place *places,
      size_t place_count,
      tenon_status *status);
} tenon_target_functions;

/* What a target's library exports. `interface` is the TENON_INTERFACE of who opens it. Called once;
 * null, with a reason, where the hardware is not there or the interface is another one. The struct
 * stays as it is until the process ends, and the library stays open: what the hardware still does
 * at that time is the library's to wait for. */
TENON_EXPORT const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status);
typedef const tenon_target_functions *(*tenon_target_function)(
    uint32_t interface, tenon_status *status);

/* --------------------------------------------------------- what a program that embeds it calls --- */

/* The runtime's version: TENON_INTERFACE times 1000, and how often it has grown since. */
TENON_EXPORT uint32_t tenon_version(void);

typedef struct tenon_device tenon_device;
typedef struct tenon_plan tenon_plan;

/* A device of a target. `library` is the path of a target's library; null: this processor, whose
 * kernels are functions of shared objects. */
TENON_EXPORT int32_t tenon_open_device(
    const char *library, int32_t device, tenon_device **found, tenon_status *status);
TENON_EXPORT void tenon_close_device(tenon_device *device);

/* A plan of these bytes (docs/plan-file.md), with its kernels in files below `folder`. All of it is
 * checked before anything runs. A plan with calls of PyTorch's ops is refused. The device is open
 * as long as the plan is. */
TENON_EXPORT int32_t tenon_read_plan(
    tenon_device *device,
    const void *bytes,
    size_t nbytes,
    const char *folder,
    tenon_plan **found,
    tenon_status *status);
TENON_EXPORT void tenon_free_plan(tenon_plan *plan);

TENON_EXPORT size_t tenon_input_count(const tenon_plan *plan);
TENON_EXPORT size_t tenon_output_count(const tenon_plan *plan);
/* The least bytes that an input has. */
TENON_EXPORT uint64_t tenon_input_bytes(const tenon_plan *plan, size_t input);
/* The bytes that an output has. */
TENON_EXPORT uint64_t tenon_output_bytes(const tenon_plan *plan, size_t output);

/* Runs a plan over memory of the host, and waits for it. There are as many addresses as inputs and
 * outputs, each aligned to 64 bytes. Several threads may run one plan at once. */
TENON_EXPORT int32_t tenon_run_plan(
    tenon_plan *plan, const void *const *inputs, void *const *outputs, tenon_status *status);

#ifdef __cplusplus
}
#endif

#endif
