#include "execute/room.h"

#include <omp.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>

#include "device/fork.h"
#include "execute/worth.h"
#include "runtime/threads.h"

namespace tenon {
namespace {

constexpr double kLook = 0.05;   // of runs, after which it is decided anew
constexpr double kMostLeft = 2;  // so many times what did not leave a processor
// Processors that threads use which sleep while they wait: there is work for them that is not ours,
// and to wake them for each part of it takes longer than the part.
constexpr double kOthersWork = 1.2;
constexpr double kPause = 5;  // seconds until they are let sleep again

// Of processors, by all threads of the process.
double seconds_used() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Room {
  MutexAtFork<ForkOrder::room> mutex;
  double left = 0, taken = 0;    // seconds of runs since it was decided
  double decided = 0, used = 0;  // when that was, and of processors until then
  double none_until = 0;
  std::atomic<bool> leaves{false};
  std::promise<void> end_of_crowd;
};

Room& room() {
  return OnlyOne<Room>::get();
}

// GNU's runtime lets no thread keep its processor once there are more threads than processors,
// whatever they do: the other threads of loops are as many as there are other processors, and these
// two do nothing, until room is no longer left.
void crowd(const std::future<void>& end) {
  std::atomic<int> members{0};  // a region that does nothing is none
#pragma omp parallel num_threads(2)
  ++members;
  end.wait();
}

void set_leaves(Room& r, bool leaves) {
  if (r.leaves == leaves)
    return;
  if (leaves) {
    r.end_of_crowd = {};
    try {
      std::thread(crowd, r.end_of_crowd.get_future()).detach();
    } catch (const std::system_error&) {
      return;  // there are threads enough: those of loops stay awake
    }
  } else {
    r.end_of_crowd.set_value();
  }
  r.leaves = leaves;
}

}  // namespace

int fewer_threads() {
  static const auto processors = static_cast<int>(usable_processors());
  const int all = omp_get_max_threads();
  const int fewer = std::max(1, std::min(all, processors - 1));
  return fewer < all ? fewer : 0;
}

void note_room(double seconds, bool left) {
  auto& r = room();
  const std::lock_guard<std::mutex> lock(r.mutex);
  (left ? r.left : r.taken) += seconds;
  if (r.left + r.taken < kLook)
    return;
  const double now = host_seconds(), used = seconds_used();
  if (r.leaves && used - r.used > kOthersWork * (now - r.decided))
    r.none_until = now + kPause;
  set_leaves(r, r.left > kMostLeft * r.taken && now >= r.none_until);
  r.left = r.taken = 0;
  r.decided = now;
  r.used = used;
}

void need_no_room() {
  auto& r = room();
  if (!r.leaves.load(std::memory_order_relaxed))
    return;
  const std::lock_guard<std::mutex> lock(r.mutex);
  set_leaves(r, false);
  r.left = r.taken = 0;
}

int threads_beside_builder() {
  return room().leaves ? fewer_threads() : 0;
}

}  // namespace tenon
