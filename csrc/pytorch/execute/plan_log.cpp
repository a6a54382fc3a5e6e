#include "execute/plan_log.h"

#include <atomic>
#include <cstdio>

#include "device/profile.h"

namespace tenon {
namespace {

std::atomic<bool> g_logs{false};

}  // namespace

bool logs_plans() {
  return g_logs.load(std::memory_order_relaxed);
}

void set_logs_plans(bool on) {
  g_logs = on;
}

void log_plan(const WindowPlan& window, const std::string& what) {
  // One write a line: other threads, and the program itself, write there too.
  const auto line = c10::str(
      "[tenon torch_tenon.plans] window ", window.id, " (", name_of(window), ") ", what, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string name_of(const WindowPlan& window) {
  const auto name = [&](const OpEntry* call) { return call->op->op.operator_name().name; };
  const auto n = window.calls.size();
  if (n == 0)
    return "no calls";
  if (n == 1)
    return name(window.calls.front());
  return c10::str(
      n,
      " calls, ",
      name(window.calls.front()),
      n == 2 ? " and " : " to ",
      name(window.calls.back()));
}

std::string format_time(double seconds) {
  char text[32];
  std::snprintf(
      text,
      sizeof(text),
      seconds < 1 ? "%.3g ms" : "%.3g s",
      seconds < 1 ? seconds * 1e3 : seconds);
  return text;
}

std::string outcome_of(const WindowPlan& window, const FoundPlan& found) {
  const auto took =
      window.asked_at == 0
          ? std::string()
          : c10::str(
                " after ",
                format_time(static_cast<double>(profile_now() - window.asked_at) * 1e-9));
  if (found.plan != nullptr)
    return "has a plan" + took;
  if (found.sized != nullptr)
    return "has a plan for sizes of any value" + took;
  return found.error.empty() ? "nobody made its plan" + took : "has no plan: " + found.error;
}

}  // namespace tenon
