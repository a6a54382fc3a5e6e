// The device guard: what PyTorch asks about current devices, streams and events.
//
// A device's kernels run in the order in which they were enqueued. So streams differ in what is
// recorded, and not in what runs beside what. Calls of two streams of a thread go to windows of
// their own. They are ordered as they are submitted, or as one reads what the other writes.

#include "device/target.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "device/buffer.h"
#include "device/pending.h"
#include "device/profile.h"

namespace tenon {
namespace {

constexpr int64_t kPoolSize = 32;  // streams of the global pool, as many as CUDA has

thread_local c10::DeviceIndex t_device = 0;
// The current stream of each device, by index; the default stream is 0.
thread_local std::array<c10::StreamId, std::numeric_limits<c10::DeviceIndex>::max()> t_streams{};
std::atomic<int64_t> g_pool_stream{0};
std::atomic<int64_t> g_new_stream{kPoolSize};

// What an event is. It may be recorded again while another thread waits for what it stood for. So
// it is read and written by `record_mutex`.
struct Mark {
  c10::DeviceIndex device = 0;
  Ticket ticket;
  uint64_t submission = 0;  // the last one before it
  bool timed = false;
};

Mark mark_of(void* event) {
  if (event == nullptr)
    return {};
  const std::lock_guard<std::mutex> lock(record_mutex());
  return *static_cast<Mark*>(event);
}

// In seconds.
double seconds_of(const Mark& mark) {
  wait_for(mark.device, mark.ticket, "an event's time");
  return mark.ticket->seconds();
}

// Everything that a device was given so far, by the window that runs as well.
Ticket commit_so_far(c10::DeviceIndex device) {
  if (target().host_memory)
    return commit_part(device);
  const QueueTurn turn(device);
  return commit_part(device);
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
    commit_stream(stream, CommitReason::synchronize);
    return is_idle(stream.device_index());
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    commit_stream(stream, CommitReason::synchronize);
    wait_until_idle(stream.device_index());
  }

  bool isStreamCapturing(const c10::Stream& stream) const override {
    return is_capturing(stream);
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
      *event = new Mark();
    Mark made;
    made.device = stream.device_index();
    made.timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    commit_stream(stream, CommitReason::synchronize);
    made.ticket = commit_so_far(made.device);
    made.submission = last_submission(made.device);
    const std::lock_guard<std::mutex> lock(record_mutex());
    std::swap(*static_cast<Mark*>(*event), made);  // the one before ends after the lock
  }

  void block(void* event, const c10::Stream& stream) const override {
    // A device's queue is in order; another device's is waited for.
    const auto mark = mark_of(event);
    if (mark.device != stream.device_index())
      wait_for(mark.device, mark.ticket, "an event of another device");
  }

  bool queryEvent(void* event) const override {
    const auto mark = mark_of(event);
    return !mark.ticket || mark.ticket->passed();
  }

  void synchronizeEvent(void* event) const override {
    if (event == nullptr)
      return;
    const auto mark = mark_of(event);
    wait_for(mark.device, mark.ticket, "an event");
    raise_unseen_fault(mark.device, mark.submission);
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr,
        "Both events must be recorded before calculating elapsed time.");
    const auto first = mark_of(start), last = mark_of(end);
    TORCH_CHECK(
        first.timed && last.timed,
        "Both events must be created with argument 'enable_timing=True'.");
    return 1e3 * (seconds_of(last) - seconds_of(first));
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

c10::StreamId current_stream_id(c10::DeviceIndex index) noexcept {
  return t_streams[index];
}

void synchronize(c10::DeviceIndex index) {
  index = check_index(index);
  const ProfiledWait waits("synchronize", index);
  commit(index, CommitReason::synchronize);
  wait_until_idle(index);
  raise_unseen(index);
}

}  // namespace tenon
