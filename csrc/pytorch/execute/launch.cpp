#include "execute/launch.h"

#include "device/interpreter.h"
#include "device/storage.h"
#include "device/target.h"
#include "record/graph.h"
#include "record/submissions.h"

namespace tenon {
namespace {

// As memory that the kernel may read and write.
void* address_for_kernel(const at::Tensor& tensor, std::vector<BufferRef>& buffers) {
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  auto* start = static_cast<char*>(settled_address(storage, Access::write));
  if (auto buffer = buffer_of(storage)) {
    settle(*buffer, Access::read);  // for its error
    note_contents(*buffer, /*whole=*/false);
    buffers.push_back(std::move(buffer));
  }
  return start != nullptr ? start + tensor.storage_offset() * tensor.itemsize() : nullptr;
}

}  // namespace

void launch_over(
    uintptr_t kernel,
    const std::vector<std::optional<at::Tensor>>& tensors,
    const std::vector<int64_t>& numbers) {
  refuse_in_capture("a kernel that a program launches");
  std::optional<c10::Device> device;
  for (const auto& tensor : tensors) {
    if (!tensor)
      continue;
    TORCH_CHECK(
        tensor->device().type() == kTenon && tensor->layout() == at::kStrided,
        "a kernel of the target's takes strided tensors of 'tenon', not one of ",
        tensor->device());
    TORCH_CHECK(
        !device || *device == tensor->device(),
        "a kernel runs on one device, and was given tensors of ",
        device.value_or(tensor->device()),
        " and ",
        tensor->device());
    device = tensor->device();
  }
  TORCH_CHECK(device, "a kernel of the target's runs where a tensor is, and was given none");
  const DeferredInterrupts until_it_is_enqueued;
  std::vector<void*> pointers;
  std::vector<BufferRef> buffers;
  for (const auto& tensor : tensors)
    pointers.push_back(tensor ? address_for_kernel(*tensor, buffers) : nullptr);
  const WithoutInterpreter no_gil;
  std::optional<QueueLock> lock;
  if (!QueueLock::held(device->index()))
    lock.emplace(device->index());
  auto& queue = queue_of(device->index());
  queue.launch(
      reinterpret_cast<KernelFunction>(kernel), pointers, numbers, /*status=*/{}, Next::nothing);
  if (!target().host_memory)
    submit_apart(device->index(), buffers, {});
}

}  // namespace tenon
