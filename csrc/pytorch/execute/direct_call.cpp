#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "device/host_allocator.h"
#include "device/profile.h"
#include "device/python_line.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_call.h"
#include "execute/host_views.h"
#include "record/direct.h"
#include "record/execution.h"
#include "record/op_key.h"
#include "record/record.h"
#include "record/submissions.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

using c10::IValue;

// Calls without a window that came again, after which calls run at once.
constexpr int64_t kNewCalls = 2000;
// ... so many, and then twice as many each time.
constexpr int64_t kFewest = 1024, kMost = 65536;
// Calls that are recorded between.
constexpr int64_t kProbe = 256;

thread_local int64_t t_new_calls = 0;
thread_local int64_t t_stretch = kFewest;

// The arguments of a call as the host's kernels see them.
class HostArguments {
 public:
  // False: an argument is not there yet, or is none that a record takes.
  bool take(const OpInfo& op, c10::ArrayRef<IValue> arguments, torch::jit::Stack& stack) {
    if (!arguments.empty() && op.replaced[0] && arguments[0].isTensor())
      give_memory(arguments[0].toTensor());
    const std::lock_guard<std::mutex> lock(record_mutex());
    for (size_t i = 0; i < arguments.size() && possible_; ++i) {
      const auto& value = arguments[i];
      written_ = op.written[i];
      if (value.isDevice() || value.isGenerator())
        return false;
      stack.push_back(map_tensors(value, [this](const at::Tensor& t) { return host_of(t); }));
    }
    return possible_ && device_ >= 0;
  }

  c10::DeviceIndex device() const {
    return device_;
  }

  // What a kernel has written in place; a few give it another size, or memory of their own.
  void take_over(const at::Tensor& t, const at::Tensor& host) const {
    if (t.device().type() != kTenon)
      return;
    if (t.sizes() != host.sizes() || t.strides() != host.strides() ||
        t.storage_offset() != host.storage_offset())
      t.unsafeGetTensorImpl()->set_sizes_and_strides(
          host.sizes(), host.strides(), host.storage_offset());
    auto& storage = *t.storage().unsafeGetStorageImpl();
    if (host.storage().data() != raw_address(storage))
      replace_memory(storage, to_device_storage(host.storage(), device_));
  }

  // A result as a tensor of the device. It may lie in the memory of an argument.
  at::Tensor to_device(const at::Tensor& host) {
    if (!host.defined() || host.device().type() == kTenon)
      return host;
    if (host.layout() != at::kStrided || host.is_quantized() || host._is_zerotensor())
      return HostViews({kTenon, device_}).to_device(host);
    auto made = tensor_over(storage_of(host.storage()), layout_of(host));
    made._set_conj(host.is_conj());
    made._set_neg(host.is_neg());
    return made;
  }

 private:
  struct Alias {
    c10::StorageImpl* device;
    c10::Storage host;
  };

  at::Tensor impossible() {
    possible_ = false;
    return {};
  }

  at::Tensor host_of(const at::Tensor& t) {
    if (!t.defined() || !possible_)
      return t;
    if (t.device().type() != kTenon)
      return t.is_cpu() && t.dim() == 0 && !written_ ? t : impossible();
    if (!is_recordable(t) || (device_ >= 0 && device_ != t.device().index()))
      return impossible();
    device_ = t.device().index();
    auto storage = host_storage(*t.storage().unsafeGetStorageImpl());
    if (!possible_)
      return {};
    auto host = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    auto* impl = host.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      impl->set_wrapped_number(true);
    // Some kernels keep what only the backward needs, and look at their arguments to know.
    if (c10::GradMode::is_enabled() && t.requires_grad() &&
        (t.is_floating_point() || t.is_complex()))
      impl->set_requires_grad(true);
    return host;
  }

  // What a call writes first, and reads nothing of, has no memory until then.
  static void give_memory(const at::Tensor& t) {
    if (t.device().type() != kTenon || !is_recordable(t))
      return;
    auto* buffer = own_buffer(*t.storage().unsafeGetStorageImpl());
    if (buffer == nullptr || buffer->address() != nullptr)
      return;
    {
      const std::lock_guard<std::mutex> lock(record_mutex());
      if (!buffer->uses.empty() || buffer->has_contents)
        return;
      buffer->has_contents = true;  // or will have: nothing is pending for it
    }
    buffer->memory();
  }

  // Memory that is settled, on the host.
  c10::Storage host_storage(c10::StorageImpl& storage) {
    auto* buffer = own_buffer(storage);
    if (buffer == nullptr || !buffer->uses.empty() || buffer->failure ||
        buffer->address() == nullptr || !is_enqueued(device_, buffer->last_use)) {
      possible_ = false;
      return {};
    }
    for (const auto& alias : aliases_) {
      if (alias.device == &storage)
        return alias.host;
    }
    return aliases_.emplace_back(Alias{&storage, borrowed(buffer->address(), buffer->nbytes)}).host;
  }

  c10::Storage storage_of(const c10::Storage& host) {
    for (const auto& alias : aliases_) {
      if (alias.host.is_alias_of(host)) {
        using Pointer = c10::intrusive_ptr<c10::StorageImpl>;
        return c10::Storage(Pointer::reclaim_copy(alias.device));
      }
    }
    // Nobody else has what the kernel has just made.
    auto& memory = host.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    if (host.use_count() == 1 && is_device_block(memory))
      return storage_over(std::move(memory), host.nbytes(), device_, /*is_block=*/true);
    const auto& made = made_.emplace_back(to_device_storage(host, device_));
    aliases_.push_back({made.unsafeGetStorageImpl(), host});  // another result may share it
    return made;
  }

  c10::SmallVector<Alias, 4> aliases_;
  std::vector<c10::Storage> made_;  // of results
  c10::DeviceIndex device_ = -1;
  bool possible_ = true;
  bool written_ = false;  // is the argument in work?
};

}  // namespace

void forget_windows() {
  t_new_calls = 0;
  t_stretch = kFewest;
  direct_calls_left = 0;
}

void note_window(WindowCame came, bool is_small, size_t calls) {
  if (came != WindowCame::anew || !is_small) {
    forget_windows();
    return;
  }
  t_new_calls += static_cast<int64_t>(calls);
  if (t_new_calls < kNewCalls)
    return;
  direct_calls_left = t_stretch;
  t_stretch = std::min(2 * t_stretch, kMost);
  t_new_calls = kNewCalls - kProbe;
}

bool run_directly(const OpInfo& op, c10::ArrayRef<IValue> arguments, torch::jit::Stack& results) {
  --direct_calls_left;
  keep_backward_here();
  const auto mode = execute_mode();
  if (!op.may_be_direct || !is_recording() ||
      (mode != ExecuteMode::automatic && mode != ExecuteMode::direct) || !target().host_memory ||
      traces_calls() || profiles() || c10::impl::TorchDispatchModeTLS::any_modes_set())
    return false;
  HostArguments host;
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  if (!host.take(op, arguments, stack))
    return false;
  for (auto* route : {op.counter, op.reference, op.direct})
    route->calls.fetch_add(1, std::memory_order_relaxed);
  const auto written = !stack.empty() && op.written[0] ? stack[0] : IValue();
  {
    const BelowAutograd below;
    const HostAllocationScope on_device(host.device());
    op.op.callBoxed(&stack);
  }
  if (written.isTensor())
    host.take_over(arguments[0].toTensor(), written.toTensor());
  for (size_t i = 0; i < op.returned.size(); ++i) {
    if (op.returned[i] >= 0)
      results.emplace_back();
    else
      results.push_back(
          map_tensors(stack[i], [&](const at::Tensor& t) { return host.to_device(t); }));
  }
  return true;
}

}  // namespace tenon
