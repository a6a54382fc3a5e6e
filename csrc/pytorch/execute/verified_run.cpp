#include "execute/verified_run.h"

#include "device/target.h"
#include "execute/reference_window.h"
#include "execute/window_run.h"
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
  const auto move = [&](size_t slot, CopyKind kind, void* bytes, size_t nbytes) {
    if (nbytes == 0)
      return;
    void* memory = window.slots[order[slot]].buffer->memory();
    const bool reads = kind == CopyKind::device_to_host;
    copy_bytes(reads ? bytes : memory, reads ? memory : bytes, nbytes, kind, device);
  };
  const SlotBytes bytes{
      [&](size_t slot, void* to, size_t nbytes) {
        move(slot, CopyKind::device_to_host, to, nbytes);
      },
      [&](size_t slot, const void* from, size_t nbytes) {
        move(slot, CopyKind::host_to_device, const_cast<void*>(from), nbytes);
      }};
  WindowRun ran;
  bool has_run = false;
  const auto by_plan = [&] {
    const auto numbers =
        target().host_memory ? nullptr : std::make_shared<DeviceNumbers>(window, device);
    auto tried = run_plan(ready, window, order, device, numbers, /*keeps_slots=*/true);
    if (tried.later) {
      wait_for_success(device, commit_part(device), "a plan that is compared");
      tried.failures = tried.later();
    }
    if (tried.failures.first)
      tried.failures.first->raise();
  };
  const auto by_reference = [&] {
    ran = run_window_by_reference(window, device, /*keeps_slots=*/true);
    has_run = true;
  };
  try {
    verify()(ready.with_sizes(window, order), window.numbers, bytes, by_plan, by_reference);
  } catch (...) {
    // An interrupt, say: what the window writes is not to be taken for written.
    const auto failure = Failure::current("");
    if (!has_run)
      by_reference();
    // What both raise is the window's; anything else is for who asked for the comparison.
    const auto failures = ran.later ? ran.later() : ran.failures;
    if (!failures.first)
      ran.interrupted = [failure] { failure->raise(); };
  }
  return ran;
}

}  // namespace tenon
