/* A target that says what its caller does wrong: "multiply" computes result = a * b over floats. It
 * has checks where it is given words for them: that the first float of a is not negative.
 *
 * Nothing runs before it is committed, and a ticket tells of what its own commit started. The test
 * sets how much memory there is and what fails. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tenon.h"

#define VISIBLE __attribute__((visibility("default")))
#define MOST 4096
#define TICKETS (1 << 20)

typedef struct {
  int is_launch, fails;
  char *to;
  const char *from, *other;
  uint64_t handles[3], serials[3];
  uint64_t nbytes, kernel;
  int64_t *status;
} command;

static command commands[MOST];
static size_t count;
static uint64_t last;              /* ticket */
static char failed[TICKETS], gone[TICKETS]; /* by ticket */
static uint64_t done;         /* a ticket: nothing later has passed */
static int late;              /* a ticket passes when it is waited for */
static int commits_refused;   /* the next ones */
static uint64_t kernels, used[MOST]; /* by kernel: the last ticket */
static int unloaded;
static int yields = 1; /* lets other threads in where they must not be */
static uint64_t sizes[MOST];       /* by handle, 0: it is none */
static uint64_t serials[MOST], serial; /* of the block that has a handle */
static char is_unloaded[MOST];         /* by kernel */
static char *memory[MOST];
static uint64_t most = UINT64_MAX, taken;
static int copies_left = -1, opened;
static int commits_fail; /* what the next ones start */

/* What is recorded. */
typedef struct {
  command commands[64];
  size_t count;
  uint64_t ticket; /* of the last replay */
  int has_ended, is_enqueued;
} recording;
static recording *open_recording, *replayed[64]; /* since the last commit */
static size_t replayed_count;
static int recordings, replays, refused_step; /* how many there are, and were replayed */
static atomic_int inside;
static atomic_flag busy = ATOMIC_FLAG_INIT; /* of all of this */
static _Atomic(const char *) wrong;

/* What the test asks and sets. */
VISIBLE const char *strict_wrong(void) {
  return wrong;
}
VISIBLE size_t strict_enqueued(void) {
  return count;
}
VISIBLE void strict_memory(uint64_t nbytes) {
  most = nbytes;
}
VISIBLE void strict_late(int is) {
  late = is;
}
VISIBLE void strict_yields(int does) {
  yields = does;
}
VISIBLE int strict_unloaded(void) {
  return unloaded;
}
VISIBLE int strict_in_flight(void) {
  return done < last;
}
VISIBLE void strict_refuse_commits(int n) {
  commits_refused = n;
}
/* So many copies are taken, and then one is refused; -1: none is. */
VISIBLE void strict_copies(int n) {
  copies_left = n;
}

VISIBLE void strict_fail_commits(int n) {
  commits_fail = n;
}
/* What is refused of recordings. 0: nothing, 1: their begin, 2: their third kernel, 3: their end. */
VISIBLE void strict_refuse_recordings(int step) {
  refused_step = step;
}
VISIBLE int strict_recordings(void) {
  return recordings;
}
VISIBLE int strict_replays(void) {
  return replays;
}

static int32_t fail(tenon_status *status, int32_t code, const char *text) {
  status->code = code;
  snprintf(status->text, sizeof(status->text), "%s", text);
  return code;
}

static void lock(void) {
  while (atomic_flag_test_and_set(&busy))
    sched_yield();
}
static void unlock(void) {
  atomic_flag_clear(&busy);
}

static void enter(void) {
  if (atomic_fetch_add(&inside, 1) != 0)
    wrong = "two threads enqueue at once";
  if (yields)
    sched_yield();
  lock();
}
static void enter_to_enqueue(void) {
  enter();
  if (open_recording)
    wrong = "something is enqueued while kernels are recorded";
}
static int32_t leave(int32_t code) {
  unlock();
  atomic_fetch_sub(&inside, 1);
  return code;
}

static char *address(tenon_place place) {
  if (place.handle == 0)
    return NULL;
  if (place.handle >= MOST || sizes[place.handle] <= place.offset) {
    wrong = "a place that is in no block";
    return NULL;
  }
  return memory[place.handle] + place.offset;
}

static uint64_t total_memory(void *context, int32_t device) {
  return most;
}

static int32_t allocate(
    void *context, int32_t device, uint64_t nbytes, uint64_t *handle, tenon_status *status) {
  lock();
  int32_t code = TENON_OUT_OF_MEMORY;
  for (uint64_t k = 1; k < MOST && taken <= most && nbytes <= most - taken; ++k) {
    if (sizes[k] != 0)
      continue;
    sizes[k] = nbytes;
    serials[k] = ++serial;
    taken += nbytes;
    memory[k] = aligned_alloc(512, (nbytes + 511) / 512 * 512);
    *handle = k;
    code = TENON_OK;
    break;
  }
  unlock();
  return code == TENON_OK ? code : fail(status, code, "it is full");
}

static void release(void *context, int32_t device, uint64_t handle) {
  lock();
  for (size_t k = 0; k < count; ++k)
    for (int j = 0; j < 3; ++j)
      if (commands[k].handles[j] == handle)
        wrong = "a block is released that something in the queue uses";
  taken -= sizes[handle];
  sizes[handle] = 0;
  free(memory[handle]);
  unlock();
}

static int32_t copy(
    void *context, int32_t device, const tenon_end *to, const tenon_end *from, uint64_t nbytes,
    tenon_status *status) {
  enter_to_enqueue();
  if (copies_left == 0 || count == MOST)
    return leave(fail(status, TENON_ERROR, "it takes no copy"));
  copies_left -= copies_left > 0;
  command *c = &commands[count++];
  *c = (command){.nbytes = nbytes, .handles = {to->place.handle, from->place.handle}};
  c->to = to->host ? to->host : address(to->place);
  c->from = from->host ? from->host : address(from->place);
  return leave(TENON_OK);
}

/* A negative number of floats: the device fails when it runs. A grid has as many runs as floats, in
 * one group, whose scratch memory has their bytes. */
static int32_t launch(
    void *context, int32_t device, const tenon_launch *asked, tenon_status *status) {
  enter();
  if (asked->place_count != 3 || asked->number_count != 1 || count == MOST)
    return leave(fail(status, TENON_ERROR, "multiply takes three places and a number"));
  if (asked->grid_count > 0) {
    const int64_t floats = asked->numbers[0];
    const int is_one = asked->grid_count == 1 && asked->grid[0] == floats;
    if (!is_one || asked->group_count != 1 || asked->group[0] != floats ||
        asked->scratch != (uint64_t)floats * 4)
      return leave(fail(status, TENON_ERROR, "multiply has one group of all its floats"));
  }
  if (open_recording && (open_recording->count == 64 ||
                         (refused_step == 2 && open_recording->count == 2)))
    return leave(fail(status, TENON_UNSUPPORTED, "it records no third kernel"));
  command *c = open_recording ? &open_recording->commands[open_recording->count++]
                              : &commands[count++];
  const tenon_place *p = asked->places;
  *c = (command){.is_launch = 1, .fails = asked->numbers[0] < 0, .kernel = asked->kernel};
  for (int k = 0; k < 3; ++k)
    c->handles[k] = p[k].handle, c->serials[k] = serials[p[k].handle % MOST];
  c->status = asked->status;
  for (size_t k = 0; k < asked->status_count; ++k)
    if (asked->status[k] != 0)
      wrong = "words for checks are not zero";
  for (int k = 0; k < 3; ++k)
    if (!asked->nbytes || (int64_t)asked->nbytes[k] < asked->numbers[0] * 4)
      wrong = "a place has less than the kernel reaches";
  c->to = address(p[0]), c->from = address(p[1]), c->other = address(p[2]);
  c->nbytes = c->fails ? 0 : (uint64_t)asked->numbers[0] * 4;
  return leave(TENON_OK);
}

static int32_t begin_recording(
    void *context, int32_t device, uint64_t *number, tenon_status *status) {
  enter_to_enqueue();
  if (refused_step == 1)
    return leave(fail(status, TENON_UNSUPPORTED, "it records nothing"));
  open_recording = calloc(1, sizeof(recording));
  *number = (uintptr_t)open_recording;
  ++recordings;
  return leave(TENON_OK);
}

static int32_t end_recording(
    void *context, int32_t device, uint64_t number, tenon_status *status) {
  enter();
  if (open_recording != (recording *)(uintptr_t)number)
    wrong = "a recording ends that has not begun";
  if (refused_step == 3)
    return leave(fail(status, TENON_ERROR, "it ends no recording"));
  open_recording->has_ended = 1;
  open_recording = NULL;
  return leave(TENON_OK);
}

static int32_t replay(void *context, int32_t device, uint64_t number, tenon_status *status) {
  enter_to_enqueue();
  recording *r = (recording *)(uintptr_t)number;
  if (!r->has_ended)
    wrong = "a recording is replayed that has not ended";
  if (r->is_enqueued || r->ticket > done)
    wrong = "a recording is replayed before the device has passed the last time";
  if (count + r->count > MOST)
    return leave(fail(status, TENON_ERROR, "it has no room for a replay"));
  for (size_t k = 0; k < r->count; ++k) {
    const command *c = &r->commands[k];
    for (int j = 0; j < 3; ++j)
      if (c->handles[j] && (!sizes[c->handles[j]] || serials[c->handles[j]] != c->serials[j]))
        wrong = "a replay names a block that was released";
    if (is_unloaded[c->kernel % MOST])
      wrong = "a replay names a kernel that was unloaded";
    for (int j = 0; c->status && j < 4; ++j)
      if (c->status[j] != 0)
        wrong = "words for checks are not zero in a replay";
    commands[count++] = *c;
  }
  r->is_enqueued = 1;
  replayed[replayed_count++] = r;
  ++replays;
  return leave(TENON_OK);
}

static void free_recording(void *context, int32_t device, uint64_t number) {
  lock();
  recording *r = (recording *)(uintptr_t)number;
  if (r->is_enqueued || r->ticket > done)
    wrong = "a recording is let go of that is in the queue";
  if (open_recording == r)
    open_recording = NULL;
  --recordings;
  free(r);
  unlock();
}

static int32_t commit(void *context, int32_t device, uint64_t *ticket, tenon_status *status) {
  enter_to_enqueue();
  if (commits_refused > 0) {
    --commits_refused;
    return leave(fail(status, TENON_ERROR, "it starts nothing"));
  }
  if (count > 0 && ++last == TICKETS)
    wrong = "more tickets than this test has";
  if (count > 0 && commits_fail > 0)
    failed[last % TICKETS] = 1, --commits_fail;
  for (size_t k = 0; k < replayed_count; ++k)
    replayed[k]->is_enqueued = 0, replayed[k]->ticket = last;
  replayed_count = 0;
  for (size_t k = 0; k < count; ++k) {
    const command *c = &commands[k];
    failed[last % TICKETS] |= (char)c->fails;
    used[c->kernel % MOST] = last;
    if (!c->is_launch && c->nbytes > 0)
      memmove(c->to, c->from, c->nbytes);
    if (c->status && ((const float *)c->from)[0] < 0)
      c->status[0] = 1, c->status[1] = -1, c->status[2] = 7;
    for (uint64_t j = 0; c->is_launch && j < c->nbytes / 4; ++j)
      ((float *)c->to)[j] = ((const float *)c->from)[j] * ((const float *)c->other)[j];
  }
  count = 0;
  done = late ? done : last;
  *ticket = last;
  return leave(TENON_OK);
}

static void ask(uint64_t ticket) {
  if (gone[ticket % TICKETS])
    wrong = "a ticket is asked for that was forgotten";
}

static int32_t passed(void *context, int32_t device, uint64_t ticket) {
  lock();
  ask(ticket);
  const int has = ticket <= done;
  unlock();
  return has;
}

static int32_t wait(void *context, int32_t device, uint64_t ticket, tenon_status *status) {
  lock();
  ask(ticket);
  done = ticket > done ? ticket : done;
  const int is_well = !failed[ticket % TICKETS];
  unlock();
  return is_well ? TENON_OK : fail(status, TENON_ERROR, "a kernel failed");
}

static void forget(void *context, int32_t device, uint64_t ticket) {
  lock();
  ask(ticket);
  gone[ticket % TICKETS] = 1;
  unlock();
}

static int32_t load(
    void *context, const void *code, uint64_t nbytes, const char *entry, uint64_t *kernel,
    tenon_status *status) {
  lock();
  *kernel = ++kernels;
  is_unloaded[kernels % MOST] = 0; /* the one that had its place */
  used[kernels % MOST] = 0;
  unlock();
  return TENON_OK;
}

static void unload(void *context, uint64_t kernel) {
  lock();
  for (size_t k = 0; k < count; ++k)
    if (commands[k].kernel == kernel)
      wrong = "a kernel is unloaded that something in the queue uses";
  if (used[kernel % MOST] > done)
    wrong = "a kernel is unloaded that the device runs";
  ++unloaded;
  is_unloaded[kernel % MOST] = 1;
  unlock();
}

VISIBLE const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {
  static const tenon_target_functions functions = {
      .size = sizeof(tenon_target_functions),
      .name = "strict",
      .devices = 1,
      .total_memory = total_memory,
      .allocate = allocate,
      .release = release,
      .copy = copy,
      .commit = commit,
      .passed = passed,
      .wait = wait,
      .forget = forget,
      .launch = launch,
      .load = load,
      .unload = unload,
      .begin_recording = begin_recording,
      .end_recording = end_recording,
      .replay = replay,
      .free_recording = free_recording,
  };
  if (opened++ > 0)
    wrong = "it is opened twice";
  return &functions;
}
