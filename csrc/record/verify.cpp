#include "record/verify.h"

#include <cstring>
#include <exception>

#include "execute/reference_window.h"

namespace tenon {
namespace {

std::function<void(const Disagreement&)>& reporter() {
  static auto* instance = new std::function<void(const Disagreement&)>();
  return *instance;
}

// The block of what a window made and what died in it may be another tensor's by now.
bool has_memory(const WindowSlot& slot) {
  return slot.block != nullptr && (slot.alive || !slot.fresh);
}

SlotBytes bytes_of(const Window& window, const std::vector<int32_t>& order) {
  SlotBytes found;
  for (const auto index : order) {
    const auto& slot = window.slots[index];
    found.emplace_back(
        has_memory(slot) ? std::string(static_cast<const char*>(slot.block), slot.nbytes)
                         : std::string());
  }
  return found;
}

void restore(const Window& window, const std::vector<int32_t>& order, const SlotBytes& bytes) {
  for (size_t k = 0; k < order.size(); ++k) {
    const auto& slot = window.slots[order[k]];
    if (has_memory(slot) && slot.written)
      std::memcpy(slot.block, bytes[k].data(), bytes[k].size());
  }
}

}  // namespace

void set_report_disagreement(std::function<void(const Disagreement&)> report) {
  reporter() = std::move(report);
}

void verify_window(
    const WindowPlan& found,
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void()>& run_plan) {
  const auto order = window.used_slots();
  auto before = bytes_of(window, order);
  for (size_t k = 0; k < order.size(); ++k) {
    // What was never written holds anything: both runs begin with zeros.
    if (window.slots[order[k]].fresh)
      std::fill(before[k].begin(), before[k].end(), '\0');
  }
  restore(window, order, before);
  std::exception_ptr error;
  try {
    run_plan();
  } catch (...) {
    error = std::current_exception();
  }
  auto by_plan = bytes_of(window, order);
  restore(window, order, before);
  run_window_by_reference(window, device);
  if (error)
    std::rethrow_exception(error);
  auto by_reference = bytes_of(window, order);
  bool same = true;
  for (size_t k = 0; k < order.size(); ++k)
    same = same && (!window.slots[order[k]].alive || by_plan[k] == by_reference[k]);
  if (!same && reporter())
    reporter()(
        {found, window.scalars, std::move(before), std::move(by_plan), std::move(by_reference)});
}

}  // namespace tenon
