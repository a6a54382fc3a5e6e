// How many threads share the loops of a run: as many as are fastest, which is measured, or fewer
// where the builder needs a processor.
//
// Threads wait for each other after every loop. Where the processors are this process's alone that
// takes a microsecond. Where something else runs there too, a thread that waits for its turn holds
// up all others. Then a small loop takes a thousand times as long as with one thread. Nobody can
// tell from the loops which it will be. So a plan's runs are timed. Now and then a few of them have
// half or twice as many threads, one or all.
//
// OpenMP's threads keep their processors for some milliseconds after a loop, to be there for the
// next one. The builder waits for an idle processor. A program may run on one thread but for a loop
// now and then, as to make a batch on the CPU. That alone would keep the builder from getting any.
// So the threads sleep instead while little else needs them. They do so as well where the process's
// threads often wait for a processor, as other programs run there. Else a thread that waits awake
// would take the processor that the one it waits for needs.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "device/threads.h"

namespace tenon {

// What runs of a plan for many sizes take, by the bytes that they make: with half or twice of them
// nothing is said of the time.
class TimesBySize {
 public:
  // With the chosen threads; 0 where there was none of about that size.
  double usual(double bytes) const;
  void note(double bytes, double seconds);
  // They are those of another number of threads from now on, which takes so much of the time.
  void change(double part);

 private:
  std::map<int, double> usual_;
};

// What is known of one plan. Several threads may run it at once.
class Pace {
 public:
  // With `sized` the plan is for many sizes: a run's time counts as a part of what one of about
  // that size usually takes.
  explicit Pace(bool sized) : sized_(sized) {}

  // For a run: how often the number of threads is to be halved.
  int halvings(int threads);
  void note(int halvings, double seconds, double bytes);

 private:
  double value_of(double seconds, double bytes) const;
  void note_trial(double value);
  void finish_trial(double mean);
  bool goes_back(double value);
  void put_off(int64_t times);

  const bool sized_;
  int chosen_ = 0, tried_ = 0;  // halvings
  int runs_ = 0;                // the first ones
  int trial_runs_ = 0;          // that are to come
  int trial_timed_ = 0;         // that were timed
  double trial_sum_ = 0;
  TimesBySize times_;
  double mean_ = 0, best_ = 0;  // of the chosen: recent ones count most; 0: none was timed
  int fewer_ = 0;               // where the chosen ones are more than before: what that was
  double fewer_mean_ = 0;       // ... and its mean; 0: they are not
  int strikes_ = 0;             // recent runs that took far longer than that
  size_t next_trial_ = 0;       // which kind it is of
  int64_t until_trial_ = kFirst, interval_ = kFirst;

  static constexpr int64_t kFirst = 4;
};

// Whether the builder takes a processor: it owes this process a plan, or was started just now and
// gets ready. windows/builder.cpp answers, and takes in now and then what the builder has said.
bool builder_works();

// A window has run for so many seconds beside the builder, and left a processor to it or not.
void note_room(double seconds, bool left);
// The builder needs no room now; whether others do is looked at a few times a second.
void need_no_room();

// The threads of what runs while the builder works, which leave it a processor; 0: all.
int threads_beside_builder();

// A run that is timed, on the threads that leave the builder a processor while that works; else on
// as many as the pace says, or on all. One that raises is not timed.
class TimedRun {
 public:
  explicit TimedRun(Pace* pace = nullptr);
  // It is over, and has made so many bytes: its seconds.
  double finish(double bytes = 0);

  bool left_a_processor() const {
    return beside_builder_ > 0;
  }

 private:
  Pace* const pace_;
  const bool builder_works_;
  const int beside_builder_;  // threads; 0: not for the builder's sake
  const int halvings_;
  const Threads threads_;
  const double start_;
};

}  // namespace tenon
