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
 * null. A user reads the text of a target behind the target's name and ": ". */
typedef struct tenon_status {
  int32_t code;    /* a tenon_code */
  char text[1020]; /* what failed, and what to do about it */
} tenon_status;

/* ------------------------------------------------------------------ what a target implements ---
 */

/* Where bytes are on a device: in a block that `allocate` gave, so far from its start. */
typedef struct tenon_place {
  uint64_t handle; /* 0: nowhere, as for a tensor without elements */
  uint64_t offset;
} tenon_place;

/* One end of a copy: memory of the host, or of the device. */
typedef struct tenon_end {
  void* host; /* an address of the host; null: the device's `place` */
  tenon_place place;
} tenon_end;

/* What comes next in a queue, where that is known. */
enum {
  TENON_NEXT_UNKNOWN = 0,
  TENON_NEXT_DEVICE =
      1,              /* another kernel of this device: there is no hurry to hand this one over */
  TENON_NEXT_HOST = 2 /* work of the host on what the device has made */
};

/* A kernel that is to run. All of it is read before `launch` returns, but for `status`. */
typedef struct tenon_launch {
  size_t size;
  uint64_t kernel; /* what `load` gave, or a number that the target's Python backend gave */
  const tenon_place* places;
  size_t place_count;
  const int64_t* numbers; /* arguments by value: one of float64 or float32 is its bits */
  size_t number_count;
  int64_t* status;     /* memory of the host for what the kernel's checks find; null: it has none.
                        * It is zero now, and stays until the ticket of the next commit has passed;
                        * of a recorded kernel it is as `replay` says. */
  size_t status_count; /* words */
  int32_t next;        /* one of TENON_NEXT_* */

  /* Of a kernel with a grid: runs along each axis, and how many of these are a group. Whole groups
   * are started. */
  const int64_t* grid;
  size_t grid_count; /* 0: it has none */
  const int64_t* group;
  size_t group_count; /* as many as the grid has; 0: nobody says */
  uint64_t scratch;   /* bytes of fast memory that a group shares */

  const size_t* nbytes; /* of each place: how much the kernel may read and write from there on */
} tenon_launch;

/* The device runs the host's code: `work(data, addresses)`, with an address for each place (null
 * for nowhere), by which the host reaches it. It does not fail. */
typedef void (*tenon_work)(void* data, void* const* addresses);

/* A target. `context` is given to each function as its first argument, `device` counts from 0.
 *
 * A queue is in order: what is enqueued runs after what was enqueued before. `copy`, `launch` and
 * `call` enqueue and do not wait; `commit` starts what was enqueued, without waiting. Where one of
 * them fails, what was enqueued before stays so. Of these four, with `copy_on`, `commit_on`,
 * `after`, `copy_from`, `begin_recording`, `end_recording` and `replay`, one runs at a time for a
 * device. Any other function may be called by any thread at any time. */
typedef struct tenon_target_functions {
  size_t size;
  const char* name;  /* in error messages and in `TENON_TARGET`; a word */
  const char* facts; /* lines "heading: fact" about the hardware, for `tenon doctor`; may be null */
  void* context;
  int32_t devices;     /* how many there are, at least 1 */
  int32_t host_memory; /* not 0: handles are addresses that the host reads and writes. Then nothing
                        * is enqueued, and the functions of the queue may be null. */

  /* Memory. Required. */

  /* The bytes that a device has in all. */
  uint64_t (*total_memory)(void* context, int32_t device);
  /* A block of so many bytes, aligned to 512. `handle` is any number but 0. */
  int32_t (*allocate)(
      void* context, int32_t device, uint64_t nbytes, uint64_t* handle, tenon_status* status);
  /* Takes a block back, of which nothing in the queue is left. */
  void (*release)(void* context, int32_t device, uint64_t handle);

  /* The queue. Required without `host_memory`. */

  /* Copies bytes: from the host, to the host, or within the device; never from host to host. Memory
   * of the host stays until the ticket of the next commit has passed. */
  int32_t (*copy)(
      void* context,
      int32_t device,
      const tenon_end* to,
      const tenon_end* from,
      uint64_t nbytes,
      tenon_status* status);
  /* Starts what was enqueued since the last commit, if anything was. `ticket` is a number that is
   * not smaller than those before: the device passes it when all of that has run. Where nothing was
   * enqueued it is that of the last commit. */
  int32_t (*commit)(void* context, int32_t device, uint64_t* ticket, tenon_status* status);
  /* 1 where the device has passed a ticket, well or not; else 0. It does not wait. A thread that
   * takes signals asks this, again and again, before it calls `wait`. */
  int32_t (*passed)(void* context, int32_t device, uint64_t ticket);
  /* Waits until the device has passed a ticket. It fails where something has failed that the commit
   * of this ticket started, each time that it is called with that ticket; not for what failed in
   * another commit. */
  int32_t (*wait)(void* context, int32_t device, uint64_t ticket, tenon_status* status);

  /* Optional: null where the hardware has no such thing. */

  /* When a ticket passed: seconds of a clock that all devices share. Asked once it has, and before
   * it is forgotten. Without it, the host's clock when somebody first saw that it had. */
  double (*seconds)(void* context, int32_t device, uint64_t ticket);
  /* Nobody asks for a ticket any more. The device may not have passed it yet. */
  void (*forget)(void* context, int32_t device, uint64_t ticket);
  /* Enqueues a kernel. Without it the target runs no kernels, and everything runs on the host. */
  int32_t (*launch)(
      void* context, int32_t device, const tenon_launch* launch, tenon_status* status);
  /* A kernel of a file's bytes, for all devices: the function `entry` in a binary, or in a source
   * that the driver compiles. `kernel` is any number but 0. */
  int32_t (*load)(
      void* context,
      const void* code,
      uint64_t nbytes,
      const char* entry,
      uint64_t* kernel,
      tenon_status* status);
  /* Lets a kernel go, of which nothing in a queue is left. */
  void (*unload)(void* context, uint64_t kernel);
  /* Enqueues work of the host on the device's memory. Without it the host works on copies. */
  int32_t (*call)(
      void* context,
      int32_t device,
      tenon_work work,
      void* data,
      const tenon_place* places,
      size_t place_count,
      tenon_status* status);

  /* Copy engines: optional, all four or none of them. A device has so many queues for copies beside
   * the one above; they are numbered from 1, and that one is 0. Each is in order, and none knows of
   * the others but by `after`. Copies run beside kernels then: the core says what has to wait. */
  int32_t copy_queues;
  /* `copy` in a queue for copies, between the host and the device. */
  int32_t (*copy_on)(
      void* context,
      int32_t device,
      int32_t queue,
      const tenon_end* to,
      const tenon_end* from,
      uint64_t nbytes,
      tenon_status* status);
  /* `commit` of a queue for copies. All tickets of a device are different numbers, and those of a
   * queue grow; `passed`, `wait`, `seconds` and `forget` take any. */
  int32_t (*commit_on)(
      void* context, int32_t device, int32_t queue, uint64_t* ticket, tenon_status* status);
  /* What is enqueued in a queue from here on begins, on the device, once a ticket of another queue
   * of this device has passed, well or not. The host does not wait. */
  int32_t (*after)(
      void* context, int32_t device, int32_t queue, uint64_t ticket, tenon_status* status);

  /* When the device began with what a ticket is of, by the clock of `seconds`, and asked as that
   * is; 0: it does not know. A profiler commits each kernel by itself, and has its time by these
   * two. Optional: without it a kernel begins when it was enqueued, or when the one before ended.
   */
  double (*started)(void* context, int32_t device, uint64_t ticket);

  /* Recordings: kernels that are recorded once, and then enqueued as one command. Optional, all
   * four or none. Enqueueing them one by one is what the core does without these, and wherever one
   * of the first two fails. */

  /* Begins a recording, of any number but 0. From here to `end_recording` what is given to `launch`
   * is recorded and not enqueued; no other function that enqueues is called for this device. One
   * that cannot be recorded makes `launch` fail, and then the recording is let go of. */
  int32_t (*begin_recording)(
      void* context, int32_t device, uint64_t* recording, tenon_status* status);
  int32_t (*end_recording)(void* context, int32_t device, uint64_t recording, tenon_status* status);
  /* Enqueues, in the queue of kernels, what was recorded. The device has passed the replay before.
   * Blocks and kernels that it names are still there, and so is each `status`, which is zero. */
  int32_t (*replay)(void* context, int32_t device, uint64_t recording, tenon_status* status);
  /* Lets a recording go, of which nothing in a queue is left, or which has not ended: nothing is
   * recorded then. Blocks that it names may have been released before. */
  void (*free_recording)(void* context, int32_t device, uint64_t recording);

  /* Copies bytes from another device of this target, in the queue of kernels of `device`. Nothing
   * that is enqueued on either device touches these bytes, and nothing will before the ticket of
   * the next commit of `device` has passed. Optional: without it such copies go through the host.
   */
  int32_t (*copy_from)(
      void* context,
      int32_t device,
      tenon_place to,
      int32_t other,
      tenon_place from,
      uint64_t nbytes,
      tenon_status* status);
} tenon_target_functions;

/* What a target's library exports. `interface` is the TENON_INTERFACE of who opens it. The
 * runtime calls it once, however often the target is opened;
 * null, with a reason, where the hardware is not there or the interface is another one. The struct
 * stays as it is until the process ends, and the library stays open: what the hardware still does
 * at that time is the library's to wait for. */
TENON_EXPORT const tenon_target_functions* tenon_target(uint32_t interface, tenon_status* status);
typedef const tenon_target_functions* (*tenon_target_function)(
    uint32_t interface, tenon_status* status);

/* --------------------------------------------------------- what a program that embeds it calls ---
 *
 * Null is an error where something has to be given. Functions without a status then give 0 or null.
 */

/* The runtime's version: TENON_INTERFACE times 1000, and how often it has grown since. */
TENON_EXPORT uint32_t tenon_version(void);

typedef struct tenon_device tenon_device;
typedef struct tenon_plan tenon_plan;

/* A device of a target. `library` is the path of a target's library; null: this processor, whose
 * kernels are functions of shared objects. */
TENON_EXPORT int32_t
tenon_open_device(const char* library, int32_t device, tenon_device** found, tenon_status* status);
TENON_EXPORT void tenon_close_device(tenon_device* device);

/* A plan of these bytes (docs/plan-file.md), with its kernels in files below `folder`. All of it is
 * checked before anything runs. A plan with calls of PyTorch's ops is refused. The device is open
 * as long as the plan is. */
TENON_EXPORT int32_t tenon_read_plan(
    tenon_device* device,
    const void* bytes,
    size_t nbytes,
    const char* folder,
    tenon_plan** found,
    tenon_status* status);
TENON_EXPORT void tenon_free_plan(tenon_plan* plan);

TENON_EXPORT size_t tenon_input_count(const tenon_plan* plan);
TENON_EXPORT size_t tenon_output_count(const tenon_plan* plan);
/* The least bytes that an input has. */
TENON_EXPORT uint64_t tenon_input_bytes(const tenon_plan* plan, size_t input);
/* The bytes that an output has. */
TENON_EXPORT uint64_t tenon_output_bytes(const tenon_plan* plan, size_t output);

/* Runs a plan over memory of the host, and waits for it. There are as many addresses as inputs and
 * outputs, each aligned to 64 bytes; an output that overlaps an input or another output is refused.
 * Several threads may run one plan at once. */
TENON_EXPORT int32_t tenon_run_plan(
    tenon_plan* plan, const void* const* inputs, void* const* outputs, tenon_status* status);

/* ------------------------------------------------------------------------- exported programs ---
 */

/* A program of one file (docs/program-file.md): methods over shared weights and state. All of the
 * file is checked when it is opened. */
typedef struct tenon_program tenon_program;

/* PyTorch's numbers of dtypes (c10::ScalarType); these are the common ones. */
enum {
  TENON_UINT8 = 0,
  TENON_INT8 = 1,
  TENON_INT16 = 2,
  TENON_INT32 = 3,
  TENON_INT64 = 4,
  TENON_FLOAT16 = 5,
  TENON_FLOAT32 = 6,
  TENON_FLOAT64 = 7,
  TENON_COMPLEX64 = 9,
  TENON_COMPLEX128 = 10,
  TENON_BOOL = 11,
  TENON_BFLOAT16 = 15,
  TENON_FLOAT8_E5M2 = 23,
  TENON_FLOAT8_E4M3FN = 24,
  TENON_UINT16 = 27,
  TENON_UINT32 = 28,
  TENON_UINT64 = 29
};

typedef struct tenon_products_t tenon_products_t;

#define TENON_MOST_DIMENSIONS 16
/* The greatest size of a dimension that has no bound. */
#define TENON_NO_BOUND ((int64_t)1 << 62)

/* How a program is opened. What is zero has its default. */
typedef struct tenon_options {
  size_t size;
  const char* library; /* path of a target's library; null: this processor */
  int32_t device;      /* of the target */
  int32_t threads;     /* that a kernel may use; 0: as many as this process may use processors */
  const char* weights; /* path of the weight file; null: beside the program, by the name that the
                        * program gives. Only for a program whose weights lie in such a file. */
  int32_t commit_each; /* not 0: the device is waited for after each step, and nothing is recorded,
                        * to compare with */
  int32_t unchecked_weights; /* not 0: the weights are not compared with their checksums. Opening
                              * is faster then, and damage in the weights is not found. */
  const tenon_products_t* products; /* what multiplies, for this program alone; null: its own code.
                                     * It is there until the program is closed. */
} tenon_options;

/* A dense tensor in row-major order, in memory of the host. */
typedef struct tenon_tensor {
  size_t size;
  void* data;      /* Of an input: only read; null where it has no elements. Of an output: where it
                    * goes; null: the run allocates it, and `tenon_free` lets go of it. */
  uint64_t nbytes; /* of the memory at `data`; at least those of the tensor */
  int32_t dtype;
  int32_t rank; /* how many of `sizes` there are */
  int64_t sizes[TENON_MOST_DIMENSIONS];
} tenon_tensor;

/* What an input or output of a method is. */
typedef struct tenon_tensor_info {
  size_t size;
  const char* name; /* lives as long as the program */
  int32_t dtype;
  int32_t rank;
  int64_t least[TENON_MOST_DIMENSIONS];    /* of each size; where it equals the greatest, */
  int64_t greatest[TENON_MOST_DIMENSIONS]; /* the size is fixed */
} tenon_tensor_info;

/* Opens a program. `options` may be null. Weights stay in the file's memory, which is mapped: the
 * file may be renamed or removed, and must not be written to, until the program is closed. One that
 * calls ops of PyTorch's is refused: Python's torch_tenon.load opens it. */
TENON_EXPORT int32_t tenon_open_program(
    const char* path, const tenon_options* options, tenon_program** found, tenon_status* status);
/* No other function runs with this program, or will. Null is no program, and no error. */
TENON_EXPORT void tenon_close_program(tenon_program* program);

TENON_EXPORT size_t tenon_method_count(const tenon_program* program);
/* Lives as long as the program; null beyond the last method. */
TENON_EXPORT const char* tenon_method_name(const tenon_program* program, size_t method);
/* How many inputs and outputs a method has; 0 beyond the last method. One that has several forms,
 * for other sizes, is one method: a run takes the form that fits. */
TENON_EXPORT size_t tenon_program_inputs(const tenon_program* program, size_t method);
TENON_EXPORT size_t tenon_program_outputs(const tenon_program* program, size_t method);
/* The caller sets `size` of `info`. */
TENON_EXPORT int32_t tenon_describe_input(
    const tenon_program* program,
    size_t method,
    size_t input,
    tenon_tensor_info* info,
    tenon_status* status);
TENON_EXPORT int32_t tenon_describe_output(
    const tenon_program* program,
    size_t method,
    size_t output,
    tenon_tensor_info* info,
    tenon_status* status);

/* Writes dtype, rank, sizes and nbytes of each output that a run with these inputs has; `data` of
 * neither is used. All tensors of a call have one `size`, which the caller sets. */
TENON_EXPORT int32_t tenon_output_sizes(
    tenon_program* program,
    size_t method,
    const tenon_tensor* inputs,
    size_t input_count,
    tenon_tensor* outputs,
    size_t output_count,
    tenon_status* status);
/* Runs a method, and waits for it. It writes dtype, rank and sizes of each output, and of one that
 * it allocates `data` (aligned to 64 bytes) and `nbytes`. An output's memory overlaps no other's,
 * or the run is refused; it may overlap an input, which the results then replace.
 * Several threads may run one program at once. One with state runs one call at a time. After an
 * error an output's memory holds anything, and none was allocated. Steps of a run that failed may
 * have changed the state: methods that use it are refused until `tenon_reset` sets it right. */
TENON_EXPORT int32_t tenon_run(
    tenon_program* program,
    size_t method,
    const tenon_tensor* inputs,
    size_t input_count,
    tenon_tensor* outputs,
    size_t output_count,
    tenon_status* status);
/* Memory of an output that a run allocated. Null is none. */
TENON_EXPORT void tenon_free(void* data);

/* The state becomes what it was when the program was opened. */
TENON_EXPORT int32_t tenon_reset(tenon_program* program, tenon_status* status);

/* Facts for tools, as a JSON object: "producer", "target", "code" (the processor that the kernels
 * are for), "threads", "weights" (bytes), "state" (bytes), "planned" (bytes of temporaries of the
 * last run), "replays" (runs that a device replayed). It lives until the next call of this function
 * with this program. */
TENON_EXPORT const char* tenon_program_json(tenon_program* program);

/* --------------------------------------------------------- what the code of a program is given ---
 */

/* The threads of who runs the kernels. A shared object of kernels has a variable
 * `const tenon_host_t *tenon_host`, which is set when it is loaded. */
typedef struct tenon_host_t {
  size_t size;
  /* Runs work(data) on so many threads, and returns when all have. 0: as many as there are. For
   * more than these, threads run it several times, each for another number. One that begins in
   * another, or while another thread's runs, has the caller alone, once. */
  void (*parallel)(void (*work)(void*), void* data, unsigned threads);
  int (*thread_number)(void); /* in a parallel: which one this is, from 0; else 0 */
  int (*threads)(void);       /* in a parallel: how many there are; else 1 */
  int (*most_threads)(void);  /* how many there are for the next parallel */
} tenon_host_t;

/* What multiplies in place of a program's own code, for one program. The code has a variable
 * `const tenon_products_t *tenon_products`, which is set when it is loaded. */
typedef struct tenon_products_t {
  size_t size;
  void* context; /* the first argument of each function */
  /* Computes a product, and has all run that is fused with it, on the threads of `host`. `product`
   * is a `tenon_matmul_t` of so many bytes (torch_tenon/targets/cpu/templates/matmul.h). Not 0:
   * nothing was done, and the program's own code does it. Any thread may call it at any time. */
  int32_t (*multiply)(void* context, const tenon_host_t* host, const void* product, size_t nbytes);
  /* What it did, for tools: a JSON object, which lives until the next call. */
  const char* (*facts)(void* context);
  /* The program is closed, and nothing calls this any more. */
  void (*close)(void* context);
} tenon_products_t;

/* What a library exports that multiplies. `interface` is the TENON_INTERFACE of who asks. The
 * library stays open until the process ends. */
TENON_EXPORT int32_t
tenon_open_products(uint32_t interface, const tenon_products_t** found, tenon_status* status);

#ifdef __cplusplus
}
#endif

#endif
