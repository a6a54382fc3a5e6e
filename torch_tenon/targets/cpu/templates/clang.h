/* What clang calls for parallel loops, by gcc's OpenMP runtime, which PyTorch has loaded: a second
 * runtime would start a second set of threads. Each function is LLVM's of that name (its kmp.h).
 * Loops of another schedule than `static` find none. */
#include <stdarg.h>
#include <stdint.h>

void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);
void GOMP_barrier(void);
void GOMP_critical_name_start(void **lock);
void GOMP_critical_name_end(void **lock);
_Bool GOMP_single_start(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);

/* An object of several units has each once; and what its loops do not call may be missing. */
#define OURS __attribute__((visibility("hidden"), weak))
#pragma weak GOMP_barrier
#pragma weak GOMP_critical_name_start
#pragma weak GOMP_critical_name_end
#pragma weak GOMP_single_start

typedef void kmp_work_t(int32_t *, int32_t *, ...);

/* A parallel region: what clang made of it, and the pointers that it is called with. */
typedef struct {
  kmp_work_t *work;
  void **given;
  int32_t count;
} kmp_region_t;

enum { KMP_MOST = 256 };
static _Thread_local unsigned kmp_threads;  /* that the next region was asked to have; 0: all */
static _Thread_local unsigned kmp_serial;   /* regions around this one that one thread runs */

/* A function may be called with more pointers than it takes. */
#define KMP_4(G, K) G[K], G[K + 1], G[K + 2], G[K + 3]
#define KMP_16(G, K) KMP_4(G, K), KMP_4(G, K + 4), KMP_4(G, K + 8), KMP_4(G, K + 12)
#define KMP_64(G, K) KMP_16(G, K), KMP_16(G, K + 16), KMP_16(G, K + 32), KMP_16(G, K + 48)

static void kmp_run(void *data) {
  const kmp_region_t *region = data;
  void **given = region->given;
  const unsigned serial = kmp_serial;
  int32_t thread = omp_get_thread_num(), bound = 0;
  kmp_serial = 0;
  if (region->count <= 16)
    region->work(&thread, &bound, KMP_16(given, 0));
  else
    region->work(&thread, &bound, KMP_64(given, 0), KMP_64(given, 64), KMP_64(given, 128),
                 KMP_64(given, 192));
  kmp_serial = serial;
}

OURS void __kmpc_fork_call(void *place, int32_t count, kmp_work_t *work, ...) {
  (void)place;
  void *given[KMP_MOST];
  if (count > KMP_MOST) __builtin_trap();
  va_list rest;
  va_start(rest, work);
  for (int32_t k = 0; k < count; ++k) given[k] = va_arg(rest, void *);
  va_end(rest);
  for (int32_t k = count; k < (count <= 16 ? 16 : KMP_MOST); ++k) given[k] = 0;
  kmp_region_t region = {work, given, count};
  const unsigned threads = kmp_threads;
  kmp_threads = 0;
  GOMP_parallel(kmp_run, &region, threads, 0);
}
OURS void __kmpc_push_num_threads(void *place, int32_t thread, int32_t threads) {
  (void)place, (void)thread;
  kmp_threads = (unsigned)threads;
}
OURS int32_t __kmpc_global_thread_num(void *place) {
  (void)place;
  return kmp_serial > 0 ? 0 : omp_get_thread_num();
}

/* A region that its `if` has said no to: this thread runs it. */
OURS void __kmpc_serialized_parallel(void *place, int32_t thread) {
  (void)place, (void)thread;
  ++kmp_serial;
}
OURS void __kmpc_end_serialized_parallel(void *place, int32_t thread) {
  (void)place, (void)thread;
  --kmp_serial;
  kmp_threads = 0;
}

/* A thread's share of a loop from *lower to *upper, both included; the first ones get what is left
 * over. */
#define KMP_SHARE(NAME, T)                                                                        \
  OURS void __kmpc_for_static_init_##NAME(void *place, int32_t thread, int32_t schedule,          \
                                          int32_t *last, T *lower, T *upper, T *stride,           \
                                          T step, T chunk) {                                      \
    (void)place, (void)thread, (void)chunk;                                                       \
    if (schedule != 34) __builtin_trap(); /* static, by no chunks */                              \
    const uint64_t number = kmp_serial > 0 ? 0 : (uint64_t)omp_get_thread_num();                  \
    const uint64_t count = kmp_serial > 0 ? 1 : (uint64_t)omp_get_num_threads();                  \
    const T first = *lower, end = *upper;                                                         \
    const int up = step > 0;                                                                      \
    const uint64_t all = (up ? end < first : first < end) ? 0                                     \
                         : up ? ((uint64_t)end - (uint64_t)first) / (uint64_t)step + 1            \
                              : ((uint64_t)first - (uint64_t)end) / -(uint64_t)step + 1;          \
    const uint64_t each = all / count, more = all % count;                                        \
    const uint64_t from = number * each + (number < more ? number : more);                        \
    const uint64_t share = each + (number < more);                                                \
    *lower = (T)((uint64_t)first + from * (uint64_t)step);                                        \
    *upper = (T)((uint64_t)*lower + (share - 1) * (uint64_t)step);                                \
    *stride = (T)(all * (uint64_t)step);                                                          \
    *last = share > 0 && from + share == all;                                                     \
  }
KMP_SHARE(4, int32_t)
KMP_SHARE(4u, uint32_t)
KMP_SHARE(8, int64_t)
KMP_SHARE(8u, uint64_t)
OURS void __kmpc_for_static_fini(void *place, int32_t thread) { (void)place, (void)thread; }

OURS void __kmpc_barrier(void *place, int32_t thread) {
  (void)place, (void)thread;
  if (kmp_serial == 0) GOMP_barrier();
}
OURS void __kmpc_critical(void *place, int32_t thread, void *lock) {
  (void)place, (void)thread;
  GOMP_critical_name_start(lock); /* eight zeros at first, as a lock of gcc's is */
}
OURS void __kmpc_end_critical(void *place, int32_t thread, void *lock) {
  (void)place, (void)thread;
  GOMP_critical_name_end(lock);
}
OURS int32_t __kmpc_single(void *place, int32_t thread) {
  (void)place, (void)thread;
  return kmp_serial > 0 || GOMP_single_start();
}
OURS void __kmpc_end_single(void *place, int32_t thread) { (void)place, (void)thread; }
OURS int32_t __kmpc_master(void *place, int32_t thread) {
  (void)place;
  return thread == 0;
}
OURS void __kmpc_end_master(void *place, int32_t thread) { (void)place, (void)thread; }

/* Each thread adds its part in turn: 1 says that this one may, until it says that it has. */
#define KMP_REDUCE(NAME)                                                                          \
  OURS int32_t __kmpc_reduce##NAME(void *place, int32_t thread, int32_t count, uint64_t bytes,    \
                                   void *data, void (*add)(void *, void *), void *lock) {         \
    (void)place, (void)thread, (void)count, (void)bytes, (void)data, (void)add;                   \
    GOMP_critical_name_start(lock);                                                               \
    return 1;                                                                                     \
  }
KMP_REDUCE()
KMP_REDUCE(_nowait)
OURS void __kmpc_end_reduce_nowait(void *place, int32_t thread, void *lock) {
  (void)place, (void)thread;
  GOMP_critical_name_end(lock);
}
OURS void __kmpc_end_reduce(void *place, int32_t thread, void *lock) {
  GOMP_critical_name_end(lock);
  __kmpc_barrier(place, thread);
}
