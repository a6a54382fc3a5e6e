#include "execute/launch.h"

#include <algorithm>
#include <tuple>

#include "device/storage.h"
#include "device/target.h"
#include "record/graph.h"
#include "record/submissions.h"

namespace tenon {
namespace {

// As memory that the kernel may read and write: its start, and how much there is from there on.
std::pair<void*, size_t> memory_for_kernel(
    const at::Tensor& tensor, std::vector<BufferRef>& buffers) {
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  auto* start = static_cast<char*>(settled_address(storage, Access::update));
  if (auto buffer = buffer_of(storage)) {
    note_contents(*buffer, /*whole=*/false);
    buffers.push_back(std::move(buffer));
  }
  const auto offset = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  if (start == nullptr || offset >= storage.nbytes())  // it has no elements
    return {nullptr, 0};
  return {start + offset, storage.nbytes() - offset};
}

}  // namespace

void launch_over(
    uintptr_t kernel,
    const std::vector<std::optional<at::Tensor>>& tensors,
    const std::vector<int64_t>& numbers,
    const std::vector<int64_t>& grid,
    const std::vector<int64_t>& group,
    int64_t scratch,
    const std::shared_ptr<KernelOwner>& owner) {
  refuse_in_capture("a kernel that a program launches");
  TORCH_CHECK(
      group.empty() || group.size() == grid.size(),
      "a group has as many axes as the grid: ",
      group.size(),
      " and ",
      grid.size());
  for (const auto runs : grid)
    TORCH_CHECK(runs >= 0, "an axis of a grid has no ", runs, " runs");
  for (const auto runs : group)
    TORCH_CHECK(runs > 0, "a group has no ", runs, " runs along an axis");
  TORCH_CHECK(scratch >= 0, "a kernel takes no ", scratch, " bytes of scratch memory");
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
  std::vector<void*> pointers(tensors.size());
  std::vector<size_t> nbytes(tensors.size());
  std::vector<BufferRef> buffers;
  for (size_t k = 0; k < tensors.size(); ++k) {
    if (tensors[k])
      std::tie(pointers[k], nbytes[k]) = memory_for_kernel(*tensors[k], buffers);
  }
  const QueueTurn turn(device->index());
  auto& queue = queue_of(device->index());
  queue.launch(
      {.kernel = reinterpret_cast<KernelFunction>(kernel),
       .pointers = pointers,
       .nbytes = nbytes,
       .numbers = numbers,
       .grid = grid,
       .group = group,
       .scratch = scratch});
  if (!target().host_memory)
    submit_apart(device->index(), buffers, /*replaces=*/false, [owner] {});
}

}  // namespace tenon
