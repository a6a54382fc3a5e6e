#include "execute/run_threads.h"

#include <omp.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>

#include "device/fork.h"
#include "runtime/queue.h"
#include "runtime/threads.h"

namespace tenon {
namespace {

constexpr int kTimed = 2;               // runs of a trial that count, after one that does not
constexpr int64_t kMostBetween = 2048;  // runs from one trial to the next
constexpr double kFaster = 0.8;         // so much of the time is a gain
constexpr double kFarSlower = 1.4;      // ... is none, whatever else happens
constexpr double kFarSlowerAwake = 4;   // ... where threads had to wake first
constexpr int64_t kAfterFewer = 32;     // runs until more threads are tried again
constexpr int kStrike = 8;              // runs after which one that took far longer is forgotten
constexpr int64_t kRarer = 2, kMuchRarer = 4;
constexpr double kSurprise = 2;  // so many times the best mean: something else runs as well
constexpr int kSettling = 8;     // first runs, of which the shortest is the mean's start
constexpr double kRecent = 0.2;  // what a run counts in the mean
constexpr double kFall = 0.5;    // ... of its size, if it is shorter

int threads_after(int halvings) {
  return std::max(1, omp_get_max_threads() >> halvings);
}

// How many leave a processor to others; 0: as many as there are do.
int fewer_threads() {
  static const auto processors = static_cast<int>(usable_processors());
  const int all = omp_get_max_threads();
  const int fewer = std::max(1, std::min(all, processors - 1));
  return fewer < all ? fewer : 0;
}

// Sizes that are less than a fifth apart, roughly.
int size_class(double bytes) {
  return static_cast<int>(4 * std::log2(std::max(bytes, 1.0)));
}

// Of all paces, and held for some additions: a fork takes it, and could not take one of each plan.
std::mutex& mutex() {
  return OnlyOne<MutexAtFork<ForkOrder::paces>>::get();
}

constexpr double kLook = 0.05;   // of runs, after which it is decided anew
constexpr double kMostLeft = 2;  // so many times what did not leave a processor
// Processors that threads use which sleep while they wait: there is work for them that is not ours.
// To wake them for each part of it takes longer than the part.
constexpr double kOthersWork = 1.2;
constexpr double kPause = 5;  // seconds until they are let sleep again
// All threads together wait for a processor such a part of the time where something else runs there
// as well. They sleep then while they wait for each other, for so many seconds; it is looked at as
// often as this.
constexpr double kWaiting = 0.3, kNotAlone = 2, kLookAround = 0.25;

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
  std::atomic<double> looked{0};  // around, last
  double waited = 0;              // until then, by all threads
  double not_alone_until = 0;
  std::atomic<bool> leaves{false};
  std::promise<void> end_of_crowd;
};

Room& room() {
  return OnlyOne<Room>::get();
}

// Seconds that the threads have waited for a processor; 0 where Linux does not say.
double seconds_waited() {
  double all = 0;
  std::error_code error;  // a run does not fail because nothing is known of others
  std::filesystem::directory_iterator thread("/proc/self/task", error), end;
  for (; !error && thread != end; thread.increment(error)) {
    double ran = 0, waited = 0;
    if (std::ifstream(thread->path() / "schedstat") >> ran >> waited)
      all += 1e-9 * waited;
  }
  return all;
}

void look_around(Room& r, double now) {
  const double waited = seconds_waited();
  if (waited - r.waited > kWaiting * (now - r.looked) && r.looked > 0)
    r.not_alone_until = now + kNotAlone;
  r.waited = waited;
  r.looked = now;
}

// GNU's runtime lets no thread keep its processor once there are more threads than processors,
// whatever they do. The threads of loops are as many as there are processors. These two do nothing,
// until room is no longer left.
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

double TimesBySize::usual(double bytes) const {
  const auto found = usual_.find(size_class(bytes));
  return found == usual_.end() ? 0 : found->second;
}

void TimesBySize::note(double bytes, double seconds) {
  auto& usual = usual_.try_emplace(size_class(bytes), seconds).first->second;
  // The first run of a size finds nothing prepared, and takes longer than it will.
  usual += (seconds < usual ? kFall : kRecent) * (seconds - usual);
}

void TimesBySize::change(double part) {
  for (auto& [size, seconds] : usual_)
    seconds *= part;
}

int Pace::halvings(int threads) {
  const std::lock_guard<std::mutex> lock(mutex());
  while (chosen_ > 0 && (threads >> chosen_) == 0)
    --chosen_;  // it has fewer threads now
  if (trial_runs_ > 0) {
    --trial_runs_;
    return tried_;
  }
  if (--until_trial_ > 0)
    return chosen_;
  until_trial_ = interval_;
  if (threads == 1)
    return chosen_;
  // Half and one thread, as a wait for any other thread may be what takes long; twice and all.
  int most = 0;
  while ((threads >> most) > 1)
    ++most;
  const std::array<int, 4> candidates = {chosen_ + 1, most, chosen_ - 1, 0};
  do {
    tried_ = candidates[next_trial_++ % candidates.size()];
  } while (tried_ < 0 || tried_ > most || tried_ == chosen_);
  trial_runs_ = kTimed;
  trial_timed_ = 0;
  trial_sum_ = 0;
  return tried_;
}

// Seconds, or the part of what is usual; 0 where nothing is known of that size.
double Pace::value_of(double seconds, double bytes) const {
  if (!sized_)
    return seconds;
  const auto usual = times_.usual(bytes);
  return usual == 0 ? 0 : seconds / usual;
}

void Pace::note_trial(double value) {
  // Where it is far slower the first run tells; that of more threads also wakes them.
  const double far = tried_ > chosen_ ? kFarSlower : kFarSlowerAwake;
  if (value > far * mean_)
    return put_off(kMuchRarer);
  // The first run of a trial wakes threads and fills caches.
  if (trial_runs_ < kTimed && value > 0) {
    trial_sum_ += value;
    ++trial_timed_;
  }
  if (trial_runs_ == 0 && trial_timed_ > 0)
    finish_trial(trial_sum_ / trial_timed_);
}

void Pace::note(int halvings, double seconds, double bytes) {
  const std::lock_guard<std::mutex> lock(mutex());
  const double value = value_of(seconds, bytes);
  if (halvings != chosen_) {
    if (halvings == tried_)
      note_trial(value);
    return;
  }
  if (sized_)
    times_.note(bytes, seconds);
  if (value == 0)
    return;
  if (fewer_mean_ > 0 && goes_back(value))
    return;
  // The first runs find nothing prepared, and take longer than later ones will.
  const bool settles = runs_ < kSettling;
  runs_ += settles ? 1 : 0;
  mean_ = mean_ == 0                 ? value
          : settles && value < mean_ ? value
                                     : (1 - kRecent) * mean_ + kRecent * value;
  best_ = best_ == 0 ? mean_ : std::min(best_, mean_);
  if (!sized_ && mean_ > kSurprise * best_ && interval_ > kFirst) {
    interval_ = kFirst;
    until_trial_ = std::min(until_trial_, interval_);
    best_ = mean_;  // what stays that slow is a surprise once
  }
}

// What else uses the processors comes and goes. More threads were faster while it was gone. The
// next run that waits for it may take as long as a hundred.
bool Pace::goes_back(double value) {
  if (value <= kFarSlower * fewer_mean_) {
    strikes_ -= strikes_ > 0 ? 1 : 0;
    return false;
  }
  strikes_ += kStrike;
  if (strikes_ <= kStrike)
    return false;
  chosen_ = fewer_;
  mean_ = best_ = fewer_mean_;
  fewer_mean_ = 0;
  put_off(kMuchRarer);
  return true;
}

void Pace::finish_trial(double mean) {
  if (mean < kFaster * mean_) {
    const bool more = tried_ < chosen_;
    const double part = sized_ ? mean : 1;
    times_.change(part);
    fewer_ = chosen_;
    fewer_mean_ = more ? mean_ / part : 0;
    strikes_ = 0;
    chosen_ = tried_;
    mean_ = best_ = mean / part;
    interval_ = more ? interval_ : kAfterFewer;
    until_trial_ = interval_;
  } else {
    put_off(kRarer);
  }
}

void Pace::put_off(int64_t times) {
  trial_runs_ = 0;
  until_trial_ = interval_ = std::min(times * interval_, kMostBetween);
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
  const double now = host_seconds();
  if (now - r.looked.load(std::memory_order_relaxed) < kLookAround)
    return;
  const std::lock_guard<std::mutex> lock(r.mutex);
  look_around(r, now);
  set_leaves(r, now < r.not_alone_until);
  r.left = r.taken = 0;
}

int threads_beside_builder() {
  return builder_works() ? fewer_threads() : 0;
}

TimedRun::TimedRun(Pace* pace)
    : pace_(pace),
      builder_works_(builder_works()),
      beside_builder_(builder_works_ ? fewer_threads() : 0),
      halvings_(pace == nullptr || left_a_processor() ? 0 : pace->halvings(omp_get_max_threads())),
      threads_(
          left_a_processor() ? beside_builder_
          : halvings_ > 0    ? threads_after(halvings_)
                             : 0),
      start_(host_seconds()) {}

double TimedRun::finish(double bytes) {
  const double seconds = host_seconds() - start_;
  if (builder_works_)
    note_room(seconds, left_a_processor());
  else
    need_no_room();
  if (pace_ != nullptr && !left_a_processor())
    pace_->note(halvings_, seconds, bytes);
  return seconds;
}

}  // namespace tenon
