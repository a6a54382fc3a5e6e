#include "execute/verified_run.h"

#include "execute/reference_window.h"
#include "runtime/failure.h"

namespace tenon {
namespace {

// Leaked on purpose: windows may be committed while the process exits.
Verify& verify() {
  static auto* instance = new Verify();
  return *instance;
}

}  // namespace

void set_verify(Verify made) {
  verify() = std::move(made);
}

WindowRun verify_window(
    const Ready& ready,
    Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device) {
  std::vector<uintptr_t> addresses;
  for (const auto index : order) {
    const auto& slot = window.slots[index];
    const bool has_memory = slot.buffer && !slot.is_temporary();
    addresses.push_back(reinterpret_cast<uintptr_t>(has_memory ? slot.buffer->memory() : nullptr));
  }
  WindowRun ran;
  bool has_run = false;
  const auto by_plan = [&] {
    const auto tried =
        run_plan(ready, window, order, device, /*numbers=*/nullptr, /*keeps_slots=*/true);
    if (tried.failures.first)
      tried.failures.first->raise();
  };
  const auto by_reference = [&] {
    ran = run_window_by_reference(window, device, /*keeps_slots=*/true);
    has_run = true;
  };
  try {
    verify()(ready.with_sizes(window, order), window.numbers, addresses, by_plan, by_reference);
  } catch (...) {
    // An interrupt, say: what the window writes is not to be taken for written.
    const auto failure = Failure::current("");
    if (!has_run)
      by_reference();
    // What both raise is the window's; anything else is for who asked for the comparison.
    if (!ran.failures.first)
      ran.interrupted = [failure] { failure->raise(); };
  }
  return ran;
}

}  // namespace tenon
