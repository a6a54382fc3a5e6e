// Calls that run at once, for about what the host's own op costs.
//
// Recording pays where a plan runs the window. Where windows never come again each call would be
// recorded, its window looked for, and the call run after all. So most calls of a thread run when
// they are made, once no plan has run its windows for long. Now and then some windows are recorded,
// to see whether they come again by now, or have plans.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "device/counters.h"
#include "device/host_allocator.h"
#include "record/op_cache.h"
#include "record/surroundings.h"

namespace tenon {

// How many of the calling thread's next calls are to be run at once. windows/direct_parts.cpp
// decides, each time that so many have run.
inline thread_local int64_t direct_calls_left = 0;
inline std::atomic<bool> all_are_direct{false};  // TENON_EXECUTE=direct

inline bool next_is_direct() {
  return direct_calls_left > 0 || all_are_direct.load(std::memory_order_relaxed);
}

// The last of them has come.
void end_direct_part();

// What became of a window of the calling thread.
enum class WindowCame { anew, again, by_plan };
// `is_small`: to record one of its calls costs as much as to run it.
void note_window(WindowCame came, bool is_small, size_t calls);
// Whether the window that the calling thread ends is none to look for. That is so where its calls
// were recorded between others that were not. It is so, too, of those after these, up to the first
// place where windows end.
bool is_fragment();
// How many calls have run when they were made since this was asked last.
int64_t direct_calls_before();
// As if the calling thread had had none.
void forget_windows();

// A call that runs when it is made: by the host's kernel, on memory that nothing is pending for.
// What its kernel gets for the arguments lives as long as this does.
class DirectCall {
 public:
  // `settled`: it is one that runs at once in any case, so that its arguments are settled.
  explicit DirectCall(const OpInfo& op, bool settled = false);
  ~DirectCall();
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;

  // An argument as the host's kernel sees it, one that is written first.
  at::Tensor& host(at::Tensor& written);
  const at::Tensor& host(const at::Tensor& read);
  std::optional<at::Tensor> host(const std::optional<at::Tensor>& read);
  c10::List<std::optional<at::Tensor>> host(const c10::List<std::optional<at::Tensor>>& read);
  struct Tensors {
    c10::SmallVector<at::Tensor, 4> all;
    operator at::TensorList() const {
      return all;
    }
    operator at::ITensorListRef() const {
      return at::TensorList(all);
    }
  };
  Tensors host(const at::TensorList& read);
  Tensors host(const at::ITensorListRef& read);
  template <class V>
  const V& host(const V& value) {
    return value;
  }

  // After all arguments. False: the call is one to record, and nothing has happened.
  bool possible() const {
    return possible_ && device_ >= 0;
  }

  // Calls the kernel. Raises what it raises.
  template <class Kernel>
  decltype(auto) run(Kernel&& kernel) {
    std::optional<CountedCall> by_host;
    if (settled_)
      by_host.emplace(*op_.host);
    else
      op_.direct->calls.fetch_add(1, std::memory_order_relaxed);
    const BelowAutograd below;
    const HostAllocationScope on_device(device_);
    return kernel();
  }

  // A result as the device's. It may lie in the memory of an argument.
  at::Tensor to_device(at::Tensor made);
  std::vector<at::Tensor> to_device(std::vector<at::Tensor> made);
  template <class... R>
  std::tuple<R...> to_device(std::tuple<R...> made) {
    return std::apply(
        [this](auto&... each) { return std::tuple<R...>{to_device(std::move(each))...}; }, made);
  }
  // What the kernel has written in place; a few give it another size, or memory of their own.
  void take_over();

 private:
  struct Argument {
    const c10::TensorImpl* device;
    at::Tensor* host;
  };

  at::Tensor& stand_in(const at::Tensor& tensor);
  at::Tensor& impossible();
  c10::Storage storage_of(const c10::Storage& made);

  const OpInfo& op_;
  const bool settled_;
  bool possible_;
  c10::DeviceIndex device_ = -1;
  const at::Tensor* written_ = nullptr;
  struct StandIns& lent_;
  const size_t first_;  // of these, that is this call's
  c10::SmallVector<Argument, 4> arguments_;
  std::vector<std::pair<c10::Storage, c10::Storage>> made_;  // of results: the host's, the device's
};

// The same for arguments and results as boxed values.
bool run_directly(
    const OpInfo& op,
    c10::ArrayRef<c10::IValue> arguments,
    torch::jit::Stack& results,
    bool settled = false);
// A call that runs at once in any case: settles what it touches before, and raises its errors.
// False: it has not run, or has made what such a call does not give the device.
bool run_settled(
    const OpInfo& op, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack& results);

}  // namespace tenon
