#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <array>

#include "device/profile.h"
#include "device/python_line.h"
#include "device/storage.h"
#include "device/target.h"
#include "device/threads.h"
#include "execute/host_views.h"
#include "execute/run_threads.h"
#include "record/direct.h"
#include "record/execution.h"
#include "record/graph.h"
#include "record/op_key.h"
#include "record/record.h"
#include "record/submissions.h"

namespace tenon {

// A thread's tensors that stand for arguments, those of calls within one another in a row.
struct StandIns {
  std::array<at::Tensor, 256> all;  // a list of tensors has many
  size_t used = 0;
};

namespace {

using c10::IValue;

thread_local StandIns t_stand_ins;

// What a call writes first, and reads nothing of, has no memory until then.
void give_memory(const at::Tensor& t) {
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

// Whether all that was recorded for a buffer has run, and has brought it contents.
bool is_settled(Buffer& buffer) {
  if (!buffer.quiet.load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> lock(record_mutex());
    if (!buffer.uses.empty() || buffer.failure || !is_enqueued(buffer.device, buffer.last_use))
      return false;
    buffer.quiet.store(true, std::memory_order_release);
  }
  return buffer.address() != nullptr;
}

bool may_run_directly(const OpInfo& op) {
  const auto mode = execute_mode();
  return op.may_be_direct && is_recording() &&
         (mode == ExecuteMode::automatic || (mode == ExecuteMode::direct && !is_capturing())) &&
         target().host_memory && !traces_calls() && !profiles() &&
         !c10::impl::TorchDispatchModeTLS::any_modes_set();
}

// Whether it is a dense tensor, several, or none.
bool is_plain(const IValue& made) {
  bool plain = true;
  map_tensors(made, [&](const at::Tensor& t) {
    plain = plain && (!t.defined() || (t.layout() == at::kStrided && !t.is_quantized() &&
                                       !t.is_nested() && !t._is_zerotensor()));
    return t;
  });
  return plain;
}

}  // namespace

DirectCall::DirectCall(const OpInfo& op, bool settled)
    : op_(op), settled_(settled), lent_(t_stand_ins), first_(lent_.used) {
  if (!settled && --direct_calls_left == 0)
    end_direct_part();
  keep_backward_here();
  possible_ = may_run_directly(op);
}

DirectCall::~DirectCall() {
  while (lent_.used > first_) {
    auto& last = lent_.all[--lent_.used];
    if (last.use_count() > 1 || !HostAlias::of(last).is_free())
      last = at::Tensor();
  }
}

at::Tensor& DirectCall::impossible() {
  static at::Tensor undefined;
  possible_ = false;
  return undefined;
}

at::Tensor& DirectCall::host(at::Tensor& written) {
  if (!possible_ || !written.defined() || written.device().type() != kTenon)
    return impossible();
  if (op_.replaced[0])
    give_memory(written);
  written_ = &written;
  return stand_in(written);
}

const at::Tensor& DirectCall::host(const at::Tensor& read) {
  if (!possible_ || !read.defined())
    return read;
  if (read.unsafeGetTensorImpl()->device_type() == kTenon)
    return stand_in(read);
  if (!read.is_cpu() || read.dim() != 0)
    return impossible();
  return read;
}

std::optional<at::Tensor> DirectCall::host(const std::optional<at::Tensor>& read) {
  return read ? std::optional(host(*read)) : std::nullopt;
}

c10::List<std::optional<at::Tensor>> DirectCall::host(
    const c10::List<std::optional<at::Tensor>>& read) {
  c10::List<std::optional<at::Tensor>> found;
  for (const std::optional<at::Tensor> each : read)
    found.push_back(host(each));
  return found;
}

DirectCall::Tensors DirectCall::host(const at::TensorList& read) {
  Tensors found;
  for (const auto& each : read)
    found.all.push_back(host(each));
  return found;
}

DirectCall::Tensors DirectCall::host(const at::ITensorListRef& read) {
  Tensors found;
  for (const auto& each : read)
    found.all.push_back(host(each));
  return found;
}

// For a tensor of the device. What are views of one storage there are so on the host.
at::Tensor& DirectCall::stand_in(const at::Tensor& tensor) {
  const auto* device = tensor.unsafeGetTensorImpl();
  // Where nothing is written nobody sees which of them are one; a list may have many.
  const bool writes = written_ != nullptr;
  for (size_t k = 0; writes && k < arguments_.size(); ++k) {
    if (arguments_[k].device == device)
      return *arguments_[k].host;
  }
  auto& storage = *device->unsafe_storage().unsafeGetStorageImpl();
  auto* buffer = is_recordable(tensor) ? own_buffer(storage) : nullptr;
  if (buffer == nullptr || (device_ >= 0 && device_ != buffer->device) || !is_settled(*buffer))
    return impossible();
  device_ = buffer->device;
  if (lent_.used == lent_.all.size())
    return impossible();
  auto& host = lent_.all[lent_.used++];
  if (!host.defined())
    host = HostAlias::make();
  auto& impl = HostAlias::of(host);
  impl.show(*device, buffer->address(), buffer->nbytes);
  for (size_t k = 0; writes && k < arguments_.size(); ++k) {
    if (arguments_[k].device->unsafe_storage().is_alias_of(device->unsafe_storage()))
      impl.set_storage_keep_dtype(arguments_[k].host->storage());
  }
  // Some kernels keep what only the backward needs, and look at their arguments to know.
  impl.set_requires_grad(
      c10::GradMode::is_enabled() && tensor.requires_grad() &&
      (tensor.is_floating_point() || tensor.is_complex()));
  arguments_.push_back({device, &host});
  return host;
}

void DirectCall::take_over() {
  if (written_ == nullptr)
    return;
  const auto& t = *written_;
  const auto& host = *arguments_[0].host;
  if (t.sizes() != host.sizes() || t.strides() != host.strides() ||
      t.storage_offset() != host.storage_offset())
    t.unsafeGetTensorImpl()->set_sizes_and_strides(
        host.sizes(), host.strides(), host.storage_offset());
  auto& storage = *t.storage().unsafeGetStorageImpl();
  if (host.storage().data() != raw_address(storage))
    replace_memory(storage, to_device_storage(host.storage(), device_));
}

at::Tensor DirectCall::to_device(at::Tensor made) {
  if (!made.defined() || move_to_device(made, device_) || made.device().type() == kTenon)
    return made;
  if (made.layout() != at::kStrided || made.is_quantized() || made._is_zerotensor())
    return HostViews({kTenon, device_}).to_device(made);
  auto found = tensor_over(storage_of(made.storage()), layout_of(made));
  found._set_conj(made.is_conj());
  found._set_neg(made.is_neg());
  return found;
}

std::vector<at::Tensor> DirectCall::to_device(std::vector<at::Tensor> made) {
  for (auto& each : made)
    each = to_device(std::move(each));
  return made;
}

c10::Storage DirectCall::storage_of(const c10::Storage& made) {
  for (const auto& known : arguments_) {
    if (known.host->storage().is_alias_of(made))
      return known.device->unsafe_storage();
  }
  for (const auto& [host, device] : made_) {
    if (host.is_alias_of(made))
      return device;
  }
  // Another result may share it.
  return made_.emplace_back(made, to_device_storage(made, device_)).second;
}

bool run_directly(
    const OpInfo& op, c10::ArrayRef<IValue> arguments, torch::jit::Stack& results, bool settled) {
  DirectCall call(op, settled);
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isDevice() || arguments[i].isGenerator() || arguments[i].isStorage())
      return false;
    stack.push_back(map_tensors(arguments[i], [&](const at::Tensor& t) -> at::Tensor {
      return op.written[i] ? call.host(const_cast<at::Tensor&>(t)) : call.host(t);
    }));
  }
  if (!call.possible())
    return false;
  const Threads threads(threads_beside_builder());
  call.run([&] { op.op.callBoxed(&stack); });
  // A sparse or quantised tensor keeps what it was given. So the call is made once more, otherwise.
  if (!op.recordable && !std::all_of(stack.begin(), stack.end(), is_plain)) {
    op.may_be_direct = false;
    return false;
  }
  call.take_over();
  for (size_t i = 0; i < op.returned.size(); ++i) {
    if (op.returned[i] >= 0)
      results.emplace_back();
    else if (stack[i].isTensorList())
      results.emplace_back(call.to_device(std::move(stack[i]).toTensorVector()));
    else if (stack[i].isTensor())
      results.emplace_back(call.to_device(std::move(stack[i]).toTensor()));
    else
      results.push_back(
          map_tensors(stack[i], [&](const at::Tensor& made) { return call.to_device(made); }));
  }
  return true;
}

bool run_settled(const OpInfo& op, c10::ArrayRef<IValue> arguments, torch::jit::Stack& results) {
  if (!may_run_directly(op) || is_capturing())
    return false;
  const Touching touching(CommitReason::not_recorded);
  for (size_t i = 0; i < arguments.size(); ++i) {
    map_tensors(arguments[i], [&](const at::Tensor& t) {
      if (t.defined() && t.device().type() == kTenon && is_recordable(t))
        settled_address(
            *t.storage().unsafeGetStorageImpl(), op.written[i] ? Access::write : Access::read);
      return t;
    });
  }
  return run_directly(op, arguments, results, /*settled=*/true);
}

}  // namespace tenon
