// When a thread's calls run directly (record/direct.h).

#include <algorithm>
#include <utility>

#include "record/direct.h"
#include "record/graph.h"
#include "windows/builder.h"
#include "windows/window_plans.h"

namespace tenon {
namespace {

// Calls without a window that a plan ran, after which calls run at once.
constexpr int64_t kUnplannedCalls = 2000;
// ... so many, and then twice as many each time, up to a number. That is larger where windows do
// not even come again.
constexpr int64_t kFewest = 4096, kMostOfAgain = 16384, kMost = 65536;
// ... but so many, once a plan has come. It is looked for after each of these parts.
constexpr int64_t kPart = 512;
// Calls that are recorded between.
constexpr int64_t kProbe = 256;

thread_local int64_t t_unplanned_calls = 0;
thread_local int64_t t_stretch = 0;     // of the last calls that ran at once
thread_local int64_t t_later = 0;       // of these, after the part that is being run
thread_local int64_t t_not_told = 0;    // of all that ran at once
thread_local int64_t t_plans_seen = 0;  // as the last of these parts began
thread_local bool t_is_fragment = false;

void begin_part() {
  direct_calls_left = std::min(t_later, kPart);
  t_later -= direct_calls_left;
  t_not_told += direct_calls_left;
  t_plans_seen = plans_that_came();
}

}  // namespace

void end_direct_part() {
  if (t_later == 0)
    return;
  hear_builder();
  if (plans_that_came() == t_plans_seen)
    return begin_part();
  t_later = t_unplanned_calls = 0;
}

void forget_windows() {
  t_unplanned_calls = t_stretch = t_later = t_not_told = direct_calls_left = 0;
  t_is_fragment = false;
}

void note_window(WindowCame came, bool is_small, size_t calls) {
  if (came == WindowCame::by_plan || !is_small || is_capturing())
    return forget_windows();
  t_unplanned_calls += static_cast<int64_t>(calls);
  if (t_unplanned_calls < kUnplannedCalls)
    return;
  const auto most = came == WindowCame::again ? kMostOfAgain : kMost;
  t_later = t_stretch = std::clamp(2 * t_stretch, kFewest, most);
  begin_part();
  t_unplanned_calls = kUnplannedCalls - kProbe;
  t_is_fragment = true;
}

bool is_fragment() {
  return next_is_direct() || std::exchange(t_is_fragment, false);
}

int64_t direct_calls_before() {
  return std::exchange(t_not_told, 0);
}

}  // namespace tenon
