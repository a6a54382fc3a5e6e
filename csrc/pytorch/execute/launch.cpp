#include "execute/launch.h"

#include <algorithm>
#include <utility>

#include "device/counters.h"
#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/plan.h"
#include "record/execution.h"
#include "record/graph.h"
#include "record/submissions.h"

namespace tenon {
namespace {

constexpr size_t kMostTensors = 8;  // that a profile names

thread_local const LibraryCall* t_call = nullptr;

// The op of the library's function that launches, if it is one.
std::string name_of_launch() {
  const auto* call = LibraryCall::current();
  return call != nullptr ? call->op() : "torch_tenon.launch";
}

// Says in the profile what is launched, as compiler/facts.py does of a call.
void note_launch(Profiled& profiled, const LaunchOver& asked) {
  Subject subject{.name = name_of_launch()};
  size_t named = 0, all = 0;
  for (const auto& tensor : asked.tensors) {
    if (!tensor)
      continue;
    subject.bytes += static_cast<int64_t>(tensor->nbytes());
    if (all++ == kMostTensors)
      continue;
    subject.detail += c10::str(
        named++ > 0 ? ", " : "", c10::getDtypeNames(tensor->scalar_type()).first, tensor->sizes());
  }
  if (all > named)
    subject.detail += c10::str(", and ", all - named, " more");
  profiled->subject = subject_of(subject);
  note_line(profiled);
}

// Gives the tensors' device.
c10::Device check(const LaunchOver& asked) {
  const auto& [kernel, tensors, numbers, grid, group, scratch, writes, owner] = asked;
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
  for (const auto k : writes.value_or(std::vector<int64_t>()))
    TORCH_CHECK(
        k >= 0 && k < static_cast<int64_t>(tensors.size()) && tensors[k],
        "`writes` of a launch has ",
        k,
        ", which is no tensor of the ",
        tensors.size(),
        " that were given");
  return *device;
}

bool is_written(const LaunchOver& asked, size_t k) {
  if (asked.writes)
    return std::ranges::count(*asked.writes, static_cast<int64_t>(k)) > 0;
  const auto* call = LibraryCall::current();
  return call == nullptr || !call->is_argument(storage_of(*asked.tensors[k]));
}

// What a launch gets of its tensors: where the kernel may read and write, from the start of each.
struct Memory {
  explicit Memory(const LaunchOver& asked)
      : pointers(asked.tensors.size()), nbytes(asked.tensors.size()) {
    for (size_t k = 0; k < pointers.size(); ++k) {
      if (asked.tensors[k])
        add(k, *asked.tensors[k], is_written(asked, k));
    }
  }

  void add(size_t k, const at::Tensor& tensor, bool writes) {
    auto& storage = storage_of(tensor);
    // The host's own queue runs what it is given at once.
    void* first = target().host_memory
                      ? settled_address(storage, Access::update)
                      : address_in_queue(storage, writes ? Access::update : Access::read);
    if (auto buffer = buffer_of(storage)) {
      if (writes) {
        note_contents(*buffer, /*whole=*/false);
        written.push_back(buffer);
      }
      used.push_back(std::move(buffer));
    }
    const auto offset = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
    if (first == nullptr || offset >= storage.nbytes())  // it has no elements
      return;
    pointers[k] = static_cast<char*>(first) + offset;
    nbytes[k] = storage.nbytes() - offset;
  }

  void raise_known_error() const {
    std::shared_ptr<Failure> found;
    {
      const std::lock_guard<std::mutex> lock(record_mutex());
      for (const auto& buffer : used)
        found = found ? found : buffer->failure;
    }
    if (found)
      found->raise();
  }

  std::vector<void*> pointers;
  std::vector<size_t> nbytes;
  std::vector<BufferRef> written, used;
};

void enqueue(Queue& queue, const LaunchOver& asked, const Memory& memory) {
  queue.launch(
      {.kernel = reinterpret_cast<KernelFunction>(asked.kernel),
       .pointers = memory.pointers,
       .nbytes = memory.nbytes,
       .numbers = asked.numbers,
       .grid = asked.grid,
       .group = asked.group,
       .scratch = asked.scratch});
}

// Gives what it writes.
std::vector<BufferRef> submit(const LaunchOver& asked) {
  const auto device = check(asked).index();
  const DeferredInterrupts until_it_is_enqueued;
  const Touching touching(CommitReason::launch);
  Memory memory(asked);
  memory.raise_known_error();
  const bool within_run = QueueLock::held(device);
  QueueTurn turn(device);
  Profiled profiled(Activity::library, device);
  if (profiled)
    note_launch(profiled, asked);
  std::optional<CountedCall> timed;
  if (times_kernels())
    timed.emplace(counter("plan", name_of_launch()));
  try {
    enqueue(queue_of(device), asked, memory);
  } catch (...) {
    profiled.cancel();
    Failure::current(text_of_ops({name_of_launch()}, 1, "launch"))->raise();
  }
  timed.reset();
  profiled.enqueued();
  if (target().host_memory)
    return {};
  auto written = within_run ? std::vector<BufferRef>() : memory.written;
  submit_apart(
      device,
      {.written = std::move(memory.written),
       .used = std::move(memory.used),
       .keeps = [owner = asked.owner] {},
       .what = text_of_ops({name_of_launch()}, 1, "launch")});
  turn.end();
  if (!within_run) {
    const WithoutInterpreter no_gil;
    finish_passed(device);
  }
  return written;
}

}  // namespace

LibraryCall::LibraryCall(std::string op, std::vector<at::Tensor> arguments)
    : op_(std::move(op)), arguments_(std::move(arguments)), outer_(std::exchange(t_call, this)) {}

LibraryCall::~LibraryCall() {
  t_call = outer_;
}

const LibraryCall* LibraryCall::current() {
  return t_call;
}

bool LibraryCall::is_argument(const c10::StorageImpl& storage) const {
  return std::ranges::any_of(arguments_, [&](const at::Tensor& each) {
    return each.has_storage() && &storage_of(each) == &storage;
  });
}

void launch_over(const LaunchOver& asked) {
  refuse_in_capture("a kernel that a program launches");
  const auto written = submit(asked);
  if (execute_mode() != ExecuteMode::reference)
    return;
  for (const auto& buffer : written)  // each op is waited for
    settle(*buffer, Access::read);
}

}  // namespace tenon
