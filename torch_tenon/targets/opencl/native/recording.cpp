#include "recording.h"

#include <cstdlib>
#include <string_view>

namespace tenon::opencl {
namespace {

constexpr uint64_t kReadWrite = 1 << 0;  // CL_MEM_READ_WRITE

}  // namespace

Replay replay_of(const Driver& driver) {
  const char* text = std::getenv("TENON_OPENCL_REPLAY");
  const std::string_view wanted = text != nullptr && *text != '\0' ? text : "auto";
  const auto buffer = driver.has_command_buffers() ? Replay::buffer : Replay::kernels;
  // A driver for the processor goes through a buffer's commands on the thread that enqueues it, and
  // PoCL's takes longer over them than over kernels.
  if (wanted == "auto")
    return driver.is_processor ? Replay::kernels : buffer;
  if (wanted == "buffer")
    return buffer;
  if (wanted == "kernels")
    return Replay::kernels;
  if (wanted == "off")
    return Replay::none;
  throw Failed(
      TENON_ERROR,
      "TENON_OPENCL_REPLAY='" + std::string(wanted) +
          "' is not valid: expected auto, buffer, kernels or off");
}

Recording::Recording(const Driver& driver, CommandQueue queue, Replay how) : driver_(driver) {
  if (how != Replay::buffer)
    return;
  Code code = 0;
  buffer_ = driver.clCreateCommandBufferKHR(1, &queue, nullptr, &code);
  driver.check(code, "making a buffer of commands");
}

Recording::~Recording() {
  if (buffer_ != nullptr)
    driver_.clReleaseCommandBufferKHR(buffer_);
  for (auto* object : objects_)
    driver_.clReleaseKernel(object);
  for (const auto& status : statuses_)
    driver_.clReleaseMemObject(status.memory);
}

KernelObject Recording::object(const Kernel& kernel) {
  Code code = 0;
  auto* made = driver_.clCreateKernel(kernel.program.get(), kernel.name.c_str(), &code);
  driver_.check(code, "making a kernel to record");
  objects_.push_back(made);
  return made;
}

Memory Recording::status(size_t nbytes, void* host) {
  Code code = 0;
  auto* made = driver_.clCreateBuffer(driver_.context, kReadWrite, nbytes, nullptr, &code);
  driver_.check(code, "making a buffer for checks");
  statuses_.push_back({made, nbytes, host});
  return made;
}

void Recording::add(const Command& command) {
  if (buffer_ == nullptr)
    return commands_.push_back(command);
  uint32_t point = 0;
  driver_.check(
      driver_.clCommandNDRangeKernelKHR(
          buffer_,
          nullptr,
          nullptr,
          command.object,
          1,
          nullptr,
          &command.global,
          &command.local,
          has_commands_ ? 1 : 0,
          has_commands_ ? &last_ : nullptr,
          &point,
          nullptr),
      command.name);
  last_ = point;
  has_commands_ = true;
}

void Recording::end() {
  if (buffer_ != nullptr)
    driver_.check(driver_.clFinalizeCommandBufferKHR(buffer_), "closing a buffer of commands");
}

}  // namespace tenon::opencl
