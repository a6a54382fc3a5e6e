// torch.autograd.profiler.profile(use_device="tenon"): an event before and after each op, whose
// times PyTorch takes for the op's on the device. Each op is submitted by itself. torch.profiler
// (execute/kineto.cpp) looks at the program as it runs.

#include <c10/core/Event.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "device/target.h"

namespace tenon {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

class OpTimes final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(
      c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const auto index = current_device();
    const c10::impl::VirtualGuardImpl guard(kTenon);
    auto made = std::make_shared<c10::Event>(kTenon, c10::EventFlag::BACKEND_DEFAULT);
    made->record(guard.getStream({kTenon, index}));
    *event = std::move(made);
    if (device != nullptr)
      *device = index;
    if (cpu_ns != nullptr)
      *cpu_ns = c10::getTime();
  }

  // In microseconds.
  float elapsed(
      const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    const auto* from = static_cast<const c10::Event*>(start->get());
    return static_cast<float>(1e3 * from->elapsedTime(*static_cast<const c10::Event*>(end->get())));
  }

  void onEachDevice(std::function<void(int)> visit) const override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      const c10::DeviceGuard guard(c10::Device(kTenon, device));
      visit(device);
    }
  }

  void synchronize() const override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device)
      tenon::synchronize(device);
  }

  bool enabled() const override {
    return true;
  }
  // There is no tool of the target's own that ranges could be for.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
};

const bool registered_observer = [] {
  static OpTimes op_times;
  torch::profiler::impl::registerPrivateUse1Methods(&op_times);
  return true;
}();

}  // namespace
}  // namespace tenon
