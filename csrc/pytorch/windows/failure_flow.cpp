#include "windows/failure_flow.h"

#include <algorithm>

namespace tenon {

bool FailureFlow::replaces(const OpEntry& call, size_t tensor, const int32_t* slots) const {
  // Calls of one entry have tensors of one layout, in storages of any size.
  return call.overwritten[tensor] && call.tensors[tensor].nbytes == nbytes_[slots[tensor]];
}

std::shared_ptr<Failure> FailureFlow::of_arguments(
    const OpEntry& call, const int32_t* slots) const {
  for (size_t k = 0; k < call.tensors.size(); ++k) {
    if (!replaces(call, k, slots) && by_slot_[slots[k]])
      return by_slot_[slots[k]];
  }
  return nullptr;
}

void FailureFlow::note(
    const OpEntry& call, const int32_t* slots, const std::shared_ptr<Failure>& failure) {
  for (size_t k = 0; k < call.tensors.size(); ++k) {
    // What a call only adds to stays what it was when the call ends well.
    if (call.written[k] && (failure || replaces(call, k, slots)))
      by_slot_[slots[k]] = failure;
  }
  for (size_t k = 0; k < call.fresh.size(); ++k)
    by_slot_[slots[call.tensors.size() + k]] = failure;
}

Failures FailureFlow::take() {
  const bool any =
      std::any_of(by_slot_.begin(), by_slot_.end(), [](auto& f) { return f != nullptr; });
  return {any ? std::move(by_slot_) : std::vector<std::shared_ptr<Failure>>(), first_};
}

std::string lost(const OpEntry& call, const std::string& line) {
  auto text = "in " + call.op->name + ", recorded ";
  text += line.empty() ? "before (TENON_TRACE_CALLS=1 tells the line)" : "at " + line;
  text += "; lost is what it makes and what depends on that:";
  const auto name = [&](const TensorLayout& layout) {
    text += c10::str(" ", scalar_type(layout), at::IntArrayRef(layout.sizes));
  };
  for (size_t k = 0; k < call.tensors.size(); ++k) {
    if (call.written[k])
      name(call.tensors[k]);
  }
  for (const auto& layout : call.fresh)
    name(layout);
  return text;
}

}  // namespace tenon
