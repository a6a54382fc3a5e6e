// Plans for the tests, in the bytes that Python writes (torch_tenon/compiler/wire/plans.py).
#pragma once

#include "runtime/plan_format.h"

namespace tests {

using tenon::Slot;

struct Kernel {
  size_t kernel;
  std::vector<size_t> slots;
  std::vector<int64_t> sizes;
  std::vector<std::vector<int32_t>> checks;
};

struct Call {
  std::string op;
  std::vector<tenon::SlotTensor> tensors;
  std::vector<std::optional<tenon::SlotTensor>> results;
  std::vector<int64_t> numbers{};  // arguments behind the tensors
};

// What is to be written.
struct Draft {
  std::vector<Slot> slots;
  std::vector<size_t> inputs, outputs;
  size_t arena = 0;
  std::vector<tenon::KernelName> kernels;
  struct Step {
    std::variant<Kernel, Call> work;
    std::vector<size_t> allocated{}, released{};
  };
  std::vector<Step> steps;
  std::vector<std::vector<float>> constants;
  std::vector<tenon::SizedNumber> numbers;
  // Of kernels: the step, and how many of its last sizes are a grid, a group and scratch memory.
  std::vector<size_t> grids;

  std::string bytes() const;
};

tenon::SlotTensor floats(size_t slot, int64_t count);

}  // namespace tests
