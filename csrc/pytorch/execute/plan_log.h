// What becomes of windows, as lines on standard error while the program runs: `TENON_LOG=plans`.
#pragma once

#include <string>

#include "execute/window_plans.h"

namespace tenon {

bool logs_plans();
void set_logs_plans(bool on);

// A line about a window.
void log_plan(const WindowPlan& window, const std::string& what);

// A window's calls in a few words: how many, the first and the last.
std::string name_of(const WindowPlan& window);

// What `finish_window` brings.
std::string outcome_of(const WindowPlan& window, const FoundPlan& found);

// Seconds as people read them, in ms below one.
std::string format_time(double seconds);

}  // namespace tenon
