#include "queue.h"

namespace tenon::opencl {
namespace {

constexpr uint64_t kProfiling = 1 << 1;   // CL_QUEUE_PROFILING_ENABLE
constexpr uint64_t kReadWrite = 1 << 0;   // CL_MEM_READ_WRITE
constexpr size_t kStatusBytes = 1 << 16;  // for more checks than any kernel has

Memory memory(const tenon_place& place) {
  return reinterpret_cast<Memory>(place.handle);
}

}  // namespace

Queue::Queue(const Driver& driver, Device device, size_t number, Tickets& tickets)
    : driver_(driver), number_(number), tickets_(tickets) {
  Code code = 0;
  queue_ = driver.clCreateCommandQueue(driver.context, device, kProfiling, &code);
  driver.check(code, "making a queue");
}

Memory Queue::status() {
  if (status_ == nullptr) {
    Code code = 0;
    status_ = driver_.clCreateBuffer(driver_.context, kReadWrite, kStatusBytes, nullptr, &code);
    driver_.check(code, "making a buffer for checks");
  }
  return status_;
}

void Queue::copy(const tenon_end& to, const tenon_end& from, uint64_t nbytes) {
  if (nbytes == 0)
    return;
  if (to.host != nullptr && from.host != nullptr)
    throw Failed(TENON_UNSUPPORTED, "a copy from the host to the host is none of a device's");
  const size_t start = to.place.offset, offset = from.place.offset;
  if (from.host != nullptr)
    enqueue_timed(
        "a copy to it",
        driver_.clEnqueueWriteBuffer,
        memory(to.place),
        0u,
        start,
        nbytes,
        static_cast<const void*>(from.host));
  else if (to.host != nullptr)
    enqueue_timed(
        "a copy to the host",
        driver_.clEnqueueReadBuffer,
        memory(from.place),
        0u,
        offset,
        nbytes,
        to.host);
  else
    enqueue_timed(
        "a copy",
        driver_.clEnqueueCopyBuffer,
        memory(from.place),
        memory(to.place),
        offset,
        start,
        nbytes);
}

void Queue::launch(const tenon_launch& launch) {
  auto& kernel = *reinterpret_cast<Kernel*>(launch.kernel);
  const size_t words = kernel.status_words, nbytes = words * sizeof(int64_t);
  if (launch.number_count == 0)
    throw Failed(TENON_ERROR, kernel.name + ": the first number is that of the work-groups");
  if (words > launch.status_count || nbytes > kStatusBytes)
    throw Failed(TENON_ERROR, kernel.name + " has more checks than there are words for");
  // A driver takes a number for a pointer, and crashes.
  const auto given = 2 * launch.place_count + launch.number_count - 1 + (words > 0 ? 1 : 0);
  if (given != kernel.arguments)
    throw Failed(
        TENON_ERROR,
        kernel.name + " takes " + std::to_string(kernel.arguments) + " arguments, and gets " +
            std::to_string(given));
  if (launch.numbers[0] == 0)
    return;
  const size_t global = static_cast<size_t>(launch.numbers[0]) * kernel.local;
  if (recording_ != nullptr) {
    auto* const object = recording_->object(kernel);
    set_all(object, launch, words > 0 ? recording_->status(nbytes, launch.status) : nullptr);
    return recording_->add({object, kernel.name.c_str(), global, kernel.local});
  }
  auto* const object = kernel.by_queue[number_];
  set_all(object, launch, words > 0 ? status() : nullptr);
  if (words > 0)
    clear(status(), nbytes);
  enqueue_kernel({object, kernel.name.c_str(), global, kernel.local});
  if (words > 0)
    read(status(), nbytes, launch.status);
}

std::unique_ptr<Recording> Queue::record(Replay how) {
  auto made = std::make_unique<Recording>(driver_, queue_, how);
  recording_ = made.get();
  return made;
}

void Queue::end_recording(Recording& recording) {
  recording_ = nullptr;
  recording.end();
}

void Queue::replay(const Recording& recording) {
  for (const auto& [memory, nbytes, host] : recording.statuses())
    clear(memory, nbytes);
  if (recording.buffer() != nullptr)
    enqueue_buffer(recording.buffer());
  for (const auto& command : recording.commands())
    enqueue_kernel(command);
  for (const auto& [memory, nbytes, host] : recording.statuses())
    read(memory, nbytes, host);
}

void Queue::set_all(KernelObject object, const tenon_launch& launch, Memory status) const {
  uint32_t next = 0;
  for (size_t k = 0; k < launch.place_count; ++k) {
    set(object, next++, memory(launch.places[k]));
    set(object, next++, launch.places[k].offset);
  }
  for (size_t k = 1; k < launch.number_count; ++k)
    set(object, next++, launch.numbers[k]);
  if (status != nullptr)
    set(object, next++, status);
}

void Queue::enqueue_kernel(const Command& command) {
  enqueue_timed(
      command.name,
      driver_.clEnqueueNDRangeKernel,
      command.object,
      1u,
      nullptr,
      &command.global,
      &command.local);
}

void Queue::clear(Memory status, size_t nbytes) {
  const int64_t zero = 0;
  enqueue(
      "clearing",
      driver_.clEnqueueFillBuffer,
      status,
      static_cast<const void*>(&zero),
      sizeof(zero),
      size_t{0},
      nbytes);
}

void Queue::read(Memory status, size_t nbytes, void* host) {
  enqueue("reading checks", driver_.clEnqueueReadBuffer, status, 0u, size_t{0}, nbytes, host);
}

void Queue::enqueue_buffer(CommandBuffer buffer) {
  Event event = nullptr;
  open_ = true;
  driver_.check(
      driver_.clEnqueueCommandBufferKHR(0, nullptr, buffer, 0, nullptr, &event),
      "enqueueing a buffer of commands");
  const std::shared_ptr<EventObject> made(event, driver_.clReleaseEvent);
  if (!first_)
    first_ = made;
}

uint64_t Queue::commit() {
  if (!open_)
    return last_;
  Event event = nullptr;
  driver_.check(
      driver_.clEnqueueMarkerWithWaitList(queue_, 0, nullptr, &event), "marking a point in time");
  last_ = tickets_.add(event, std::move(first_));
  driver_.check(driver_.clFlush(queue_), "handing commands to the device");
  open_ = false;
  return last_;
}

// The queue is in order, so all that follows waits with the marker.
void Queue::after(uint64_t ticket) {
  const auto event = tickets_.event(ticket);
  if (!event)
    return;
  const Event waited = event.get();
  open_ = true;
  driver_.check(
      driver_.clEnqueueMarkerWithWaitList(queue_, 1, &waited, nullptr),
      "waiting for another queue");
}

void Queue::finish() const {
  driver_.clFinish(queue_);
}

template <class T>
void Queue::set(KernelObject object, uint32_t index, const T& value) const {
  driver_.check(driver_.clSetKernelArg(object, index, sizeof(T), &value), "setting an argument");
}

// One of the driver's functions, which waits for nothing but what is in the queue.
template <class Function, class... Arguments>
void Queue::enqueue(const char* what, Function* function, Arguments... arguments) {
  open_ = true;
  driver_.check(function(queue_, arguments..., 0, nullptr, nullptr), what);
}

template <class Function, class... Arguments>
void Queue::enqueue_timed(const char* what, Function* function, Arguments... arguments) {
  if (first_)
    return enqueue(what, function, arguments...);
  open_ = true;
  Event event = nullptr;
  driver_.check(function(queue_, arguments..., 0, nullptr, &event), what);
  if (event != nullptr)
    first_ = {event, driver_.clReleaseEvent};
}

}  // namespace tenon::opencl
