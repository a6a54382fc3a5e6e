// The device guard: what PyTorch asks about current devices, streams and events.
//
// A target has one queue per device and it is in order, so a stream is a label: work of any two
// streams of a device is ordered as it was enqueued, which is stronger than streams promise.

#include "device/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <limits>

#include "device/recorded.h"
#include "device/target.h"

namespace tenon {
namespace {

constexpr int64_t kPoolSize = 32;  // streams of the global pool, as many as CUDA has

thread_local c10::DeviceIndex t_device = 0;
// The current stream of each device, by index; the default stream is 0.
thread_local std::array<c10::StreamId, std::numeric_limits<c10::DeviceIndex>::max()> t_streams{};
std::atomic<int64_t> g_pool_stream{0};
std::atomic<int64_t> g_new_stream{kPoolSize};

struct Event {
  c10::DeviceIndex device = 0;
  std::chrono::steady_clock::time_point time;
  bool timed = false;
  std::atomic<bool> done{false};
};

Event* as_event(void* event) {
  return static_cast<Event*>(event);
}

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kTenon, device), id);
}

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kTenon;
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    return {kTenon, exchange_device(device.index())};
  }

  c10::Device getDevice() const override {
    return {kTenon, t_device};
  }

  void setDevice(c10::Device device) const override {
    exchange_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0)
      t_device = device.index();
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(check_index(device.index()), 0);
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(check_index(device.index()), 1 + g_pool_stream++ % kPoolSize);
  }

  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(check_index(device.index()), ++g_new_stream);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto device = check_index(stream.device_index());
    const auto previous = current_stream(device);
    t_streams[device] = stream.id();
    return previous;
  }

  // It overrides since PyTorch 2.13.
  void* getStreamNativeHandle(const c10::Stream stream) const {
    return reinterpret_cast<void*>(stream.id());
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }

  bool queryStream(const c10::Stream& stream) const override {
    return target().idle(stream.device_index());
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize(device);
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex device,
      const c10::EventFlag flag) const override {
    TORCH_CHECK(
        device == -1 || device == stream.device_index(),
        "Event device ",
        c10::Device(kTenon, device),
        " does not match recording stream's device ",
        stream.device());
    if (*event == nullptr)
      *event = new Event();
    auto* e = as_event(*event);
    e->device = stream.device_index();
    e->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    e->done = target().idle(e->device);
    // A target tells no time of completion: an event that is to tell one waits for it.
    if (e->timed && !e->done) {
      synchronize(e->device);
      e->done = true;
    }
    e->time = std::chrono::steady_clock::now();
  }

  void block(void*, const c10::Stream&) const override {
    // The queue is in order: what was recorded before runs before.
  }

  bool queryEvent(void* event) const override {
    auto* e = as_event(event);
    return e == nullptr || e->done || (e->done = target().idle(e->device));
  }

  void synchronizeEvent(void* event) const override {
    auto* e = as_event(event);
    if (e == nullptr || e->done)
      return;
    synchronize(e->device);
    e->done = true;
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete as_event(event);
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr,
        "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(
        as_event(start)->timed && as_event(end)->timed,
        "Both events must be created with argument 'enable_timing=True'.");
    return std::chrono::duration<double, std::milli>(as_event(end)->time - as_event(start)->time)
        .count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

}  // namespace

c10::DeviceIndex current_device() noexcept {
  return t_device;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const auto previous = t_device;
  t_device = check_index(index);
  return previous;
}

c10::Stream current_stream(c10::DeviceIndex index) {
  const auto device = check_index(index);
  return stream_of(device, t_streams[device]);
}

void synchronize(c10::DeviceIndex index) {
  index = check_index(index);
  commit(index, CommitReason::synchronize);
  target().synchronize(index);
}

}  // namespace tenon
