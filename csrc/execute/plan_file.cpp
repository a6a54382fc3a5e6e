#include "execute/plan_file.h"

#include <ATen/ops/empty.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "device/fork.h"
#include "record/archive.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

constexpr std::string_view kMagic = "torch-tenon plan 1\n";

struct Files {
  std::mutex mutex;
  std::string directory, identity;
  KernelFiles kernels;
  std::unordered_map<std::string, uint64_t> checksums;  // of objects that were read
};

Files& files() {
  static auto* instance = [] {
    auto* made = new Files();
    take_at_fork(made->mutex, ForkOrder::plan_files);
    return made;
  }();
  return *instance;
}

std::optional<std::string> contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string path_of(const Files& f, std::string_view structure) {
  const auto seed = checksum(f.identity);
  char name[40];
  std::snprintf(
      name,
      sizeof(name),
      "%016llx%016llx",
      static_cast<unsigned long long>(checksum(structure, seed)),
      static_cast<unsigned long long>(checksum(structure, ~seed)));
  return f.directory + "/plans/" + name + ".plan";
}

// Host tensors of any size.
void write_tensor(Writer& archive, const at::Tensor& tensor) {
  const auto dense = tensor.contiguous();
  const auto* first = static_cast<const char*>(dense.const_data_ptr());
  archive(tensor.scalar_type(), tensor.sizes().vec(), std::string(first, dense.nbytes()));
}

at::Tensor read_tensor(Reader& archive) {
  at::ScalarType dtype{};
  std::vector<int64_t> sizes;
  std::string data;
  archive(dtype, sizes, data);
  auto tensor = at::empty(sizes, at::TensorOptions(at::kCPU).dtype(dtype));
  TORCH_CHECK(tensor.nbytes() == data.size(), "a constant of another size");
  std::memcpy(tensor.mutable_data_ptr(), data.data(), data.size());
  return tensor;
}

std::string name_of(const c10::OperatorHandle& op) {
  return op.operator_name().name + "\n" + op.operator_name().overload_name;
}

c10::OperatorHandle op_of(const std::string& name) {
  const auto end = name.find('\n');
  TORCH_CHECK(end != std::string::npos, "no name of an op");
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, end).c_str(), name.substr(end + 1).c_str());
}

}  // namespace

template <class Archive>
void fields(Archive& archive, SlotTensor& x) {
  archive(x.slot, x.layout);
}

template <class Archive>
void fields(Archive& archive, KernelName& x) {
  archive(x.object, x.symbol, x.checksum);
}

template <class Archive>
void fields(Archive& archive, KernelStep& x) {
  archive(x.kernel, x.slots, x.sizes, x.checks);
}

template <class Archive>
void fields(Archive& archive, WindowPlan::SlotFacts& x) {
  archive(x.nbytes, x.fresh, x.alive, x.written);
}

namespace {

void write_call(Writer& archive, const CallStep& x) {
  archive(name_of(x.op), x.arguments, x.tensors, x.results);
  archive(x.counter->route, x.counter->op, x.call);
}

CallStep read_call(Reader& archive) {
  std::string op, route, counted;
  archive(op);
  CallStep x{op_of(op), {}, {}, {}, nullptr, -1};
  archive(x.arguments, x.tensors, x.results, route, counted, x.call);
  x.counter = &counter(route, counted);
  return x;
}

void write_plan(Writer& archive, const PlanData& x) {
  archive(x.inputs, x.outputs, x.arena_bytes, x.results, x.kernels, x.slots.size());
  for (const auto& slot : x.slots) {
    archive(slot.kind, slot.number, slot.under);
    if (slot.kind == Slot::Kind::constant)
      write_tensor(archive, slot.tensor);
  }
  archive(x.steps.size());
  for (const auto& step : x.steps) {
    archive(step.name, step.allocated, step.released, step.work.index());
    if (const auto* kernel = std::get_if<KernelStep>(&step.work))
      archive(*kernel);
    else
      write_call(archive, std::get<CallStep>(step.work));
  }
}

PlanData read_plan(Reader& archive) {
  PlanData x;
  size_t slots = 0, steps = 0;
  archive(x.inputs, x.outputs, x.arena_bytes, x.results, x.kernels, slots);
  for (size_t k = 0; k < slots; ++k) {
    auto& slot = x.slots.emplace_back();
    archive(slot.kind, slot.number, slot.under);
    if (slot.kind == Slot::Kind::constant)
      slot.tensor = read_tensor(archive);
  }
  archive(steps);
  for (size_t k = 0; k < steps; ++k) {
    Step step;
    size_t kind = 0;
    archive(step.name, step.allocated, step.released, kind);
    step.counter = &counter("plan", step.name);
    if (kind == 0)
      archive(step.work.emplace<KernelStep>());
    else
      step.work = read_call(archive);
    x.steps.push_back(std::move(step));
  }
  return x;
}

// Puts the target's kernels into the steps; false where one is not to be had.
bool find_kernels(Files& f, PlanData& plan, std::string_view extras) {
  std::vector<uintptr_t> found;
  for (const auto& kernel : plan.kernels) {
    const auto path = f.directory + "/" + kernel.object;
    auto known = f.checksums.find(path);
    if (known == f.checksums.end()) {
      const auto bytes = contents(path);
      if (!bytes)
        return false;
      known = f.checksums.emplace(path, checksum(*bytes)).first;
    }
    const auto address = known->second == kernel.checksum ? f.kernels.load(path, kernel.symbol) : 0;
    if (address == 0) {
      f.checksums.erase(known);  // it may be replaced
      return false;
    }
    found.push_back(address);
  }
  for (auto& step : plan.steps) {
    if (auto* kernel = std::get_if<KernelStep>(&step.work))
      kernel->function = reinterpret_cast<KernelFunction>(found.at(kernel->kernel));
  }
  return f.kernels.adopt(extras, found);
}

// The contents of a plan file for that structure, if that is what they are.
std::optional<Reader> opened(std::string_view bytes, std::string_view structure) {
  uint64_t sum = 0;
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < kMagic.size() + sizeof(sum))
    return std::nullopt;
  std::memcpy(&sum, bytes.data() + kMagic.size(), sizeof(sum));
  const auto body = bytes.substr(kMagic.size() + sizeof(sum));
  if (checksum(body) != sum)
    return std::nullopt;
  Reader reader(body);
  std::string identity, kept;
  reader(identity, kept);
  // Names may be equal by chance.
  if (identity != files().identity || kept != structure)
    return std::nullopt;
  return reader;
}

}  // namespace

void set_plan_directory(std::string directory, std::string identity) {
  auto& f = files();
  const std::lock_guard<std::mutex> lock(f.mutex);
  f.directory = std::move(directory);
  f.identity = std::move(identity);
  if (!f.directory.empty())
    mkdir((f.directory + "/plans").c_str(), 0700);
}

void set_kernel_files(KernelFiles kernels) {
  const std::lock_guard<std::mutex> lock(files().mutex);
  files().kernels = std::move(kernels);
}

std::string structure_of(const WindowPlan& window) {
  Writer archive;
  try {
    archive(window.threads, window.calls.size());
    for (const auto* call : window.calls) {
      archive(name_of(call->op->op), call->surroundings(), call->arguments, call->tensors);
      archive(call->written, call->results, call->fresh);
    }
    archive(window.slots_of_calls, window.slots);
  } catch (const c10::Error&) {
    return {};
  }
  return std::move(archive.bytes);
}

std::shared_ptr<WindowPlan> window_of(std::string_view structure) {
  auto window = std::make_shared<WindowPlan>();
  Reader archive(structure);
  size_t calls = 0;
  archive(window->threads, calls);
  for (size_t k = 0; k < calls; ++k) {
    std::string op;
    int64_t surroundings = 0;
    archive(op, surroundings);
    auto owned = std::make_shared<OwnEntry>(op_of(op));
    auto& call = owned->entry;
    call.key = {surroundings};
    archive(call.arguments, call.tensors, call.written, call.results, call.fresh);
    window->calls.push_back(&call);
    window->own.push_back(std::move(owned));
  }
  archive(window->slots_of_calls, window->slots);
  return window;
}

bool find_kept(WindowPlan& window) {
  // Modes of the thread that happens to look have no say in what is read.
  const NeutralThread neutral;
  auto& f = files();
  const auto structure = structure_of(window);
  const std::lock_guard<std::mutex> lock(f.mutex);
  if (f.directory.empty() || structure.empty() || !f.kernels.load)
    return false;
  const auto bytes = contents(path_of(f, structure));
  if (!bytes)
    return false;
  try {
    auto reader = opened(*bytes, structure);
    if (!reader)
      return false;
    std::vector<int32_t> inputs, outputs;
    std::string error, facts, extras;
    (*reader)(inputs, outputs, error, facts, extras);
    std::shared_ptr<Plan> plan;
    if (error.empty()) {
      auto data = read_plan(*reader);
      if (!find_kernels(f, data, extras))
        return false;
      plan = std::make_shared<Plan>(std::move(data));
    }
    finish_window(window, {std::move(plan), std::move(inputs), std::move(outputs), error, facts});
    return true;
  } catch (const std::exception&) {  // damage that the checksum has not seen
    return false;
  }
}

bool keep(const WindowPlan& window) {
  auto& f = files();
  const auto structure = structure_of(window);
  const std::lock_guard<std::mutex> lock(f.mutex);
  const auto& found = window.found;
  if (f.directory.empty() || structure.empty() || (!found.plan && found.error.empty()))
    return false;
  Writer archive;
  try {
    archive(f.identity, structure, found.inputs, found.outputs, found.error, found.facts);
    archive(found.extras);
    if (found.plan) {
      for (const auto& step : found.plan->data().steps) {
        const auto* kernel = std::get_if<KernelStep>(&step.work);
        if (kernel != nullptr && kernel->kernel >= found.plan->data().kernels.size())
          return false;  // nobody knows where it is
      }
      write_plan(archive, found.plan->data());
    }
  } catch (const c10::Error&) {
    return false;
  }
  std::string bytes(kMagic);
  const auto sum = checksum(archive.bytes);
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  return write_whole(path_of(f, structure), bytes + archive.bytes);
}

}  // namespace tenon
