// The world that a call is made in: what decides its results beside its arguments. A key has it
// (record/op_key.h), and it is in force when the call runs, on whatever thread.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <cstdint>
#include <optional>

namespace tenon {

// What decides a call's results beside its arguments, as it is now. The default dtype, grad mode,
// and inference mode. Whether algorithms have to be deterministic, or a warning is enough. Whether
// oneDNN may be used, on which the layouts of convolutions depend. Whether the thread takes
// denormal numbers for zero.
int64_t surroundings();
bool is_deterministic(int64_t surroundings);
// Whether they are the same but for grad mode and inference mode.
bool same_settings(int64_t a, int64_t b);

// Within it, whatever the thread was about: no autograd, no autocast, no inference mode, no mode or
// transform of Python's, gradients off. What ops run in that were recorded below all of these.
class NeutralThread {
 public:
  NeutralThread();
  ~NeutralThread();
  NeutralThread(const NeutralThread&) = delete;
  NeutralThread& operator=(const NeutralThread&) = delete;

 private:
  c10::AutogradState autograd_;
  std::optional<at::impl::PythonTorchFunctionTLS> functions_;
  std::optional<c10::impl::TorchDispatchModeTLS> modes_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Within it calls go to the kernels themselves, whatever the thread was about: what a NeutralThread
// does to a call's keys, and nothing else.
class BelowAutograd {
 public:
  BelowAutograd();
  BelowAutograd(const BelowAutograd&) = delete;
  BelowAutograd& operator=(const BelowAutograd&) = delete;

 private:
  std::optional<c10::impl::ForceDispatchKeyGuard> keys_;  // none where the thread is so already
};

// Within it they are what they were. Those of the process are only touched where they have changed:
// Python's setters submit what was recorded before they change something
// (torch_tenon/pytorch/settings.py).
class AsRecorded {
 public:
  explicit AsRecorded(int64_t recorded);
  ~AsRecorded();
  AsRecorded(const AsRecorded&) = delete;
  AsRecorded& operator=(const AsRecorded&) = delete;

 private:
  int64_t before_;
  bool changed_;
};

}  // namespace tenon
