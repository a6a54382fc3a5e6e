// What the recorder hands over; execute/ and windows/ answer.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "record/recorder.h"

namespace tenon {

// The keys of the device, each with the host's for the same layout.
constexpr std::pair<c10::DispatchKey, c10::DispatchKey> kKeys[] = {
    {c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU},
    {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCPU},
    {c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU},
    {c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::QuantizedCPU},
    {c10::DispatchKey::NestedTensorPrivateUse1, c10::DispatchKey::NestedTensorCPU}};

// Reference execution of a call, at once. A boxed kernel: it takes the arguments from the stack and
// leaves the results there. Raises what the CPU kernel raises, the errors of what it reads, and
// c10::Error where tensors of several devices meet.
void run_reference(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Warn once per op that falls back to it.
void set_warn_fallback(bool warn);

// The errors that the contents of a window's buffers end with.
struct Failures {
  std::vector<std::shared_ptr<Failure>> by_slot;  // empty: there are none
  std::shared_ptr<Failure> first;                 // of those that this window's calls raised
};

struct WindowRun {
  Failures failures;
  // On an asynchronous target: to be asked once the window has run, after all windows before it.
  std::function<Failures()> later;
  // What Python raised while a plan was asked for, to be raised when the window is over.
  std::function<void()> interrupted;
  // By reference: what kernels took that a plan calls as well.
  double library_seconds = 0;
};

// Runs a window, or enqueues it, under the queue lock of its device. Slots that nobody needs any
// more are let go of on the way.
WindowRun run_window(Window& window, c10::DeviceIndex device, ExecuteMode mode);

}  // namespace tenon
