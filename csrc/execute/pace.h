// How many threads share the loops of a plan's kernels: as many as are fastest, which is measured.
//
// Threads wait for each other after every loop. Where the processors are this process's alone that
// takes a microsecond; where something else runs there too, a thread that waits for its turn holds
// up all others, and a small loop takes a thousand times as long as with one thread. Nobody can
// tell from the loops which it will be. So runs are timed, and now and then a few of them have half
// or twice as many threads, one or all.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "device/threads.h"

namespace tenon {

// What is known of one plan. Several threads may run it at once.
class Pace {
 public:
  // With `sized` the plan is for many sizes: a run's time is taken for each byte that it makes.
  explicit Pace(bool sized) : sized_(sized) {}

  // For a run: how often the number of threads is to be halved.
  int halvings(int threads);
  void note(int halvings, double seconds, double bytes);

 private:
  void finish_trial(double mean);
  bool goes_back(double value);
  void put_off(int64_t times);

  std::mutex mutex_;
  const bool sized_;
  int chosen_ = 0, tried_ = 0;  // halvings
  int trial_runs_ = 0;          // that are to come, or to be timed
  double trial_sum_ = 0;
  double mean_ = 0, best_ = 0;  // of the chosen: recent ones count most; 0: none was timed
  int fewer_ = 0;               // where the chosen ones are more than before: what that was
  double fewer_mean_ = 0;       // ... and its mean; 0: they are not
  int strikes_ = 0;             // recent runs that took far longer than that
  size_t next_trial_ = 0;       // which kind it is of
  int64_t until_trial_ = kFirst, interval_ = kFirst;

  static constexpr int64_t kFirst = 4;
};

// One run: with the plan's threads while it lives.
class PacedRun {
 public:
  PacedRun(Pace& pace, double bytes);
  // It is over; one that raised is not timed.
  void finish();

 private:
  Pace& pace_;
  double bytes_;
  int halvings_;
  Threads threads_;
  double start_;
};

}  // namespace tenon
