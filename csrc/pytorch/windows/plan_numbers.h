// A window's run-time numbers where its plan reads them.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "record/window.h"

namespace tenon {

class PlanNumbers {
 public:
  // In the device's memory, to which they are copied; where the host reaches that, in the window.
  PlanNumbers(const Window& window, c10::DeviceIndex device);
  // What a plan's input reads that is a number (`FoundPlan::inputs`). It is there as long as this,
  // and as the window where the host reaches the memory.
  void* address(int32_t input);

 private:
  // As they are, then those of float64 in float32: there are kernels that have no other floats.
  std::vector<int64_t> values_;
  c10::DataPtr memory_;
  const std::vector<int64_t>& given_;
  size_t count_;
};

}  // namespace tenon
