#include "windows/plan_file.h"

#include <pybind11/pybind11.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "device/fork.h"
#include "device/interrupts.h"
#include "record/call_pattern.h"
#include "record/sizes.h"
#include "record/surroundings.h"
#include "record/values.h"
#include "runtime/plan_check.h"
#include "windows/window_plans.h"

namespace tenon {
namespace {

constexpr size_t kMostClaimsOfFile = 4;  // of windows that are alike but for their sizes
constexpr std::string_view kMagic = "torch-tenon plan 8\n";

struct Files {
  MutexAtFork<ForkOrder::plan_files> mutex;
  std::string directory, identity;
  KernelFiles kernels;
};

Files& files() {
  return OnlyOne<Files>::get();
}

std::string path_of(const Files& f, std::string_view structure, const char* ending = ".plan") {
  const auto seed = checksum(f.identity);
  char name[40];
  std::snprintf(
      name,
      sizeof(name),
      "%016llx%016llx",
      static_cast<unsigned long long>(checksum(structure, seed)),
      static_cast<unsigned long long>(checksum(structure, ~seed)));
  return f.directory + "/plans/" + name + ending;
}

}  // namespace

template <class Archive>
void fields(Archive& archive, WindowPlan::SlotFacts& x) {
  archive(x.nbytes, x.fresh, x.alive, x.written);
}

namespace {

// The contents of a plan file for that structure, if that is what they are.
std::optional<Reader> opened(std::string_view bytes, std::string_view structure) {
  const auto body = checked(bytes, kMagic);
  if (!body)
    return std::nullopt;
  Reader reader(*body);
  std::string identity, kept;
  reader(identity, kept);
  // Names may be equal by chance.
  if (identity != files().identity || kept != structure)
    return std::nullopt;
  return reader;
}

using ForeignOps = std::vector<std::string>;

DescribeOp& described_by() {
  static auto* instance = new DescribeOp();
  return *instance;
}

// What is to be told of each foreign op of a window, in the order of calls; nothing where one
// cannot be told of. Asks Python, so the caller holds no lock.
std::optional<ForeignOps> describe_foreign_ops(const WindowPlan& window) {
  std::unordered_set<std::string_view> known;
  ForeignOps found;
  for (const auto& call : window.calls) {
    const auto& op = *call->op;
    if (op.lasts || !known.insert(op.name).second)
      continue;
    std::optional<std::string> description;
    const DeferredInterrupts until_it_is_described;  // it would be lost below
    try {
      if (described_by())
        description = described_by()(op.name);
    } catch (pybind11::error_already_set& error) {
      const pybind11::gil_scoped_acquire gil;
      error.discard_as_unraisable("an op is described");
    }
    if (!description)
      return std::nullopt;
    found.push_back(std::move(*description));
  }
  return found;
}

// A window's calls and slots with their sizes. Raises for an argument that is no plain data.
std::string calls_and_slots(const WindowPlan& window, const ForeignOps& foreign) {
  Writer archive;
  archive(foreign, window.threads, window.calls.size());
  for (const auto& call : window.calls) {
    archive(name_of(call->op->op), call->surroundings(), call->arguments, call->tensors);
    archive(call->written, call->results, call->fresh);
  }
  archive(window.slots_of_calls, window.slots);
  return std::move(archive.bytes);
}

// ... and without them. Raises as well.
std::string without_sizes(const WindowPlan& window, const ForeignOps& foreign) {
  Writer key;
  key(foreign, window.sized, window.threads);
  for (size_t k = 0; k < window.calls.size(); ++k) {
    const auto& call = *window.calls[k];
    key(name_of(call.op->op), call.results, call.resized);
    if (window.sized[k] >= 0)
      key(call.pattern != nullptr ? call.pattern->key : call.key);
    else
      key(call.surroundings(), call.arguments, call.tensors, call.written, call.fresh);
  }
  key(window.slots_of_calls);
  for (const auto& slot : window.slots)
    key(slot.fresh, slot.alive, slot.written);
  return std::move(key.bytes);
}

// The entries of its calls are added to `entries`, for who has more to tell of them.
std::shared_ptr<WindowPlan> window_of_calls(
    std::string_view text, std::vector<std::shared_ptr<ForeignEntry>>& entries) {
  auto window = std::make_shared<WindowPlan>();
  Reader archive(text);
  ForeignOps foreign;
  size_t calls = 0;
  archive(foreign, window->threads, calls);
  for (size_t k = 0; k < calls; ++k) {
    std::string op;
    int64_t surroundings = 0;
    archive(op, surroundings);
    const auto& owned = entries.emplace_back(std::make_shared<ForeignEntry>(op_of(op)));
    auto& call = owned->entry;
    call.key = {surroundings};
    archive(call.arguments, call.tensors, call.written, call.results, call.fresh);
    window->calls.emplace_back(owned, &call);
  }
  archive(window->slots_of_calls, window->slots);
  window->sized.resize(calls, -1);
  return window;
}

// The claims that are kept of windows which are alike but for their sizes.
std::vector<SizeClaim> read_claims(const Files& f, const std::string& alike) {
  const auto bytes = read_whole(path_of(f, alike, ".sizes"));
  if (!bytes)
    return {};
  try {
    auto reader = opened(*bytes, alike);
    std::vector<SizeClaim> claims;
    if (reader)
      (*reader)(claims);
    std::erase_if(claims, [](const auto& claim) { return !is_sound(claim); });
    return claims;
  } catch (const std::exception&) {  // damage that the checksum has not seen
    return {};
  }
}

// Adds a window's claim to those.
void keep_claim(const Files& f, const WindowPlan& window, const ForeignOps& foreign) {
  const auto alike = without_sizes(window, foreign);
  auto claims = read_claims(f, alike);
  std::erase_if(claims, [&](const auto& one) {
    return std::equal(
        one.numbers.begin(),
        one.numbers.end(),
        window.claim->numbers.begin(),
        window.claim->numbers.end(),
        [](const auto& a, const auto& b) { return a.words == b.words; });
  });
  claims.insert(claims.begin(), *window.claim);
  claims.resize(std::min(claims.size(), kMostClaimsOfFile));
  Writer archive;
  archive(f.identity, alike, claims);
  write_checked(path_of(f, alike, ".sizes"), kMagic, archive.bytes);
}

size_t numbers_of(const ArgumentPlan& argument) {
  size_t found = argument.kind == ArgumentPlan::number;
  for (const auto& element : argument.elements)
    found += numbers_of(element);
  return found;
}

// Older memory is read and written; what the window makes itself has memory if it outlives it.
void check_slots_of_window(
    const PlanData& plan,
    const WindowPlan& window,
    const std::vector<int32_t>& inputs,
    const std::vector<int32_t>& outputs) {
  check_data(
      inputs.size() == plan.inputs.size() && outputs.size() == plan.outputs.size(),
      "inputs or outputs are missing");
  size_t numbers = 0;
  for (const auto& call : window.calls) {
    for (const auto& argument : call->arguments)
      numbers += numbers_of(argument);
  }
  const auto slots = static_cast<int64_t>(window.slots.size());
  for (const int64_t k : inputs) {
    const auto place = -1 - k >= kInFloat32 ? -1 - k - kInFloat32 : -1 - k;
    check_data(k < slots && place < static_cast<int64_t>(numbers), "no input {}", k);
    check_data(k < 0 || !window.slots[k].fresh, "input {} has no memory", k);
  }
  for (const int64_t k : outputs) {
    check_data(k >= 0 && k < slots, "no output {}", k);
    check_data(!window.slots[k].fresh || window.slots[k].alive, "nobody keeps output {}", k);
  }
}

// A plan calls ops of PyTorch's or of the device's, or of a package that the window has ops of.
void check_may_be_called(const WindowPlan& window, const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto space = schema.getNamespace();
  const bool is_of_window =
      std::any_of(window.calls.begin(), window.calls.end(), [&](const auto& call) {
        return call->op->op.schema().getNamespace() == space;
      });
  check_data(is_of_window || !is_foreign(op), "{} is no op of the window's", schema.name());
  check_opens_no_file(op);
}

// Puts the target's kernels into the steps; false where one is not to be had.
bool find_kernels(Files& f, PlanData& plan, std::string_view extras) {
  std::vector<LoadedKernel> found;
  for (const auto& kernel : plan.kernels) {
    auto loaded = f.kernels.load(f.directory + "/" + kernel.object, kernel.symbol, kernel.checksum);
    if (loaded.address == 0)
      return false;
    plan.owners.push_back(loaded.owner);
    found.push_back(std::move(loaded));
  }
  for (auto& step : plan.steps) {
    if (auto* kernel = std::get_if<KernelStep>(&step.work))
      kernel->function = reinterpret_cast<KernelFunction>(found.at(kernel->kernel).address);
  }
  return f.kernels.adopt(extras, found);
}

// The bytes that are there for each of a plan's inputs or outputs: a slot of the window, or a
// number.
std::vector<SizeExpression> bytes_there(
    const WindowPlan& window, const std::vector<int32_t>& places) {
  constexpr auto constant = SizeExpression::constant;
  std::vector<SizeExpression> found;
  for (const auto k : places) {
    if (k < 0) {
      found.push_back(SizeExpression::of(constant, sizeof(int64_t)));
    } else if (!window.claim) {
      found.push_back(
          SizeExpression::of(constant, static_cast<int64_t>(window.slots.at(k).nbytes)));
    } else {
      // A claim ends with the bytes of the slots.
      const auto& numbers = window.claim->numbers;
      found.push_back(numbers.at(numbers.size() - window.slots.size() + k));
    }
  }
  return found;
}

std::vector<int64_t> values_of(const std::vector<SizeExpression>& all) {
  std::vector<int64_t> values;
  for (const auto& one : all)
    values.push_back(one.evaluate({}).value());
  return values;
}

Structure structure_of(const WindowPlan& window, const ForeignOps& foreign) {
  try {
    if (!window.claim)
      return {calls_and_slots(window, foreign), {}};
    Writer key, example;
    key(window.claim->symbols, window.claim->numbers);
    key.bytes += without_sizes(window, foreign);
    example(window.claim->seen, calls_and_slots(window, foreign));
    return {std::move(key.bytes), std::move(example.bytes)};
  } catch (const c10::Error&) {  // an argument that is no plain data
    return {};
  }
}

}  // namespace

void set_describe_op(DescribeOp describe) {
  described_by() = std::move(describe);
}

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

Structure structure_of(const WindowPlan& window) {
  const auto foreign = describe_foreign_ops(window);
  return foreign ? structure_of(window, *foreign) : Structure{};
}

Structure structure_here(const WindowPlan& window) {
  return structure_of(window, ForeignOps());
}

std::shared_ptr<WindowPlan> window_of(const Structure& structure) {
  std::vector<std::shared_ptr<ForeignEntry>> entries;
  if (structure.example.empty())
    return window_of_calls(structure.key, entries);
  SizeClaim claim;
  std::string calls;
  Reader example(structure.example), key(structure.key);
  example(claim.seen, calls);
  auto window = window_of_calls(calls, entries);
  ForeignOps foreign;
  key(claim.symbols, claim.numbers, foreign, window->sized, window->threads);
  // What the key has of each call is more than its example tells; it is kept as it is.
  for (size_t k = 0; k < window->calls.size(); ++k) {
    std::string op;
    std::vector<ResultPlan> results;
    auto& call = entries.at(k)->entry;
    key(op, results, call.resized);
    if (window->sized.at(k) >= 0) {
      key(call.key);
    } else {
      int64_t surroundings = 0;
      key(surroundings, call.arguments, call.tensors, call.written, call.fresh);
    }
  }
  window->claim = std::move(claim);
  return window;
}

std::vector<SizeClaim> kept_claims(const WindowPlan& window) {
  const NeutralThread neutral;
  const auto foreign = describe_foreign_ops(window);
  auto& f = files();
  const std::lock_guard<std::mutex> lock(f.mutex);
  if (f.directory.empty() || !foreign)
    return {};
  try {
    return read_claims(f, without_sizes(window, *foreign));
  } catch (const c10::Error&) {  // an argument that is no plain data
    return {};
  }
}

bool find_kept(WindowPlan& window) {
  // Modes of the thread that happens to look have no say in what is read.
  const NeutralThread neutral;
  auto& f = files();
  const auto structure = structure_of(window).key;
  const std::lock_guard<std::mutex> lock(f.mutex);
  if (f.directory.empty() || structure.empty() || !f.kernels.load)
    return false;
  const auto bytes = read_whole(path_of(f, structure));
  if (!bytes)
    return false;
  try {
    auto reader = opened(*bytes, structure);
    if (!reader)
      return false;
    std::vector<int32_t> inputs, outputs;
    std::string error, facts, extras;
    (*reader)(inputs, outputs, error, facts, extras);
    std::shared_ptr<SizedPlan> plan;
    if (error.empty()) {
      auto read = read_plan(reader->text());
      const bool is_sized = window.claim && !window.claim->symbols.empty();
      check_data(reader->at_end() && (is_sized || read.numbers.empty()), "sizes of one size");
      check_plan(read, window.calls.size());
      check_slots_of_window(read.plan, window, inputs, outputs);
      for (auto& step : read.plan.steps) {
        if (auto* call = std::get_if<CallStep>(&step.work)) {
          check_may_be_called(window, op_of(call->op));
          resolve_call(*call);
        }
      }
      const auto in = bytes_there(window, inputs), out = bytes_there(window, outputs);
      if (!is_sized && !check_memory(read.plan, values_of(in), values_of(out)))
        return false;
      if (!find_kernels(f, read.plan, extras))
        return false;
      plan = std::make_shared<SizedPlan>(std::move(read), is_sized);
      if (is_sized)
        plan->check_memory_of(in, out);
    }
    finish_window(
        window,
        {std::move(plan),
         std::move(inputs),
         std::move(outputs),
         error,
         /*may_pass=*/false,
         facts});
    return true;
  } catch (const std::exception&) {  // damage that the checksum has not seen
    return false;
  }
}

bool keep(const WindowPlan& window, const std::string& plan) {
  const auto foreign = describe_foreign_ops(window);
  if (!foreign)
    return false;
  auto& f = files();
  const auto structure = structure_of(window, *foreign).key;
  const std::lock_guard<std::mutex> lock(f.mutex);
  const auto& found = window.found;
  const auto* data = found.plan ? &found.plan->data() : nullptr;
  const bool failed = !found.error.empty() && !found.may_pass;
  if (f.directory.empty() || structure.empty() || (data == nullptr && !failed))
    return false;
  Writer archive;
  archive(f.identity, structure, found.inputs, found.outputs, found.error, found.facts);
  archive(found.extras);
  if (data != nullptr) {
    for (const auto& step : data->steps) {
      const auto* kernel = std::get_if<KernelStep>(&step.work);
      if (kernel != nullptr && kernel->kernel >= data->kernels.size())
        return false;  // nobody knows where it is
    }
    archive(plan);
  }
  if (!write_checked(path_of(f, structure), kMagic, archive.bytes))
    return false;
  if (window.claim)
    keep_claim(f, window, *foreign);
  return true;
}

}  // namespace tenon
