// Where the errors of a window's calls go: to all that depends on what failed, and nowhere else.
#pragma once

#include <memory>
#include <vector>

#include "record/execution.h"

namespace tenon {

class FailureFlow {
 public:
  // `by_slot`: the errors that the slots begin with; `nbytes`: how large they are.
  FailureFlow(std::vector<std::shared_ptr<Failure>> by_slot, std::vector<size_t> nbytes)
      : by_slot_(std::move(by_slot)), nbytes_(std::move(nbytes)) {}

  // The error of what a call reads; its slots as a window has them.
  std::shared_ptr<Failure> of_arguments(const OpEntry& call, const int32_t* slots) const;
  // A call ended, with an error or without.
  void note(const OpEntry& call, const int32_t* slots, const std::shared_ptr<Failure>& failure);
  // ... with one that it did not inherit.
  void raised(const OpEntry& call, const int32_t* slots, const std::shared_ptr<Failure>& failure) {
    if (!first_)
      first_ = failure;
    note(call, slots, failure);
  }

  Failures take();

 private:
  // Whether a call replaces all that the slot of its tensor holds.
  bool replaces(const OpEntry& call, size_t tensor, const int32_t* slots) const;

  std::vector<std::shared_ptr<Failure>> by_slot_;
  std::vector<size_t> nbytes_;
  std::shared_ptr<Failure> first_;
};

// What a late error says beside its own text: which call it is of, and what is lost.
std::string lost(const OpEntry& call, const std::string& line);

}  // namespace tenon
