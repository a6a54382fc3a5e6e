#include "runtime/program.h"

#include <algorithm>
#include <iterator>

#include "runtime/host_ops.h"
#include "runtime/processor.h"
#include "runtime/run.h"
#include "runtime/shared_object.h"

namespace tenon {
namespace {

// Memory for a run on this processor.
class HostRun final : public RunHost {
 public:
  HostRun(const MethodPlan& plan, RunMemory& memory)
      : given(plan.data.slots.size()),
        plan_(plan),
        memory_(memory),
        piece_(memory.take(plan.placement.nbytes)) {}
  ~HostRun() override {
    memory_.give_back(piece_);
  }
  HostRun(const HostRun&) = delete;
  HostRun& operator=(const HostRun&) = delete;

  void* arena(size_t) override {
    return piece_.start;
  }
  void* allocate(size_t slot, size_t nbytes) override {
    switch (plan_.data.slots[slot].kind) {
      case Slot::Kind::output:
        return given[slot];
      case Slot::Kind::block:
        return static_cast<char*>(piece_.start) + plan_.placement.offsets[slot];
      default:
        return make(slot, nbytes);
    }
  }
  void release(size_t slot) override {
    if (plan_.data.slots[slot].kind == Slot::Kind::external)
      made_[slot] = nullptr;
  }
  void call(size_t step, std::span<void* const> tensors, std::span<void*> results) override {
    const auto& call = std::get<CallStep>(plan_.data.steps[step].work);
    for (size_t k = 0; k < results.size(); ++k) {
      const auto& result = call.results[k];
      if (result && results[k] == nullptr)
        results[k] = make(result->slot, result->layout.nbytes);
    }
    call.function(call, tensors, results);
  }

  std::vector<void*> given;  // by slot: the caller's memory

 private:
  void* make(size_t slot, size_t nbytes) {
    made_.resize(plan_.data.slots.size());
    return (made_[slot] = aligned_memory(nbytes)).get();
  }

  const MethodPlan& plan_;
  RunMemory& memory_;
  const RunMemory::Piece piece_;
  std::vector<std::shared_ptr<void>> made_;  // by slot: what calls made
};

std::string json_text(std::string_view text) {
  std::string found = "\"";
  for (const char c : text) {
    constexpr char kDigits[] = "0123456789abcdef";
    if (c == '"' || c == '\\')
      found += {'\\', c};
    else if (static_cast<uint8_t>(c) < 0x20)
      found += {'\\', 'u', '0', '0', kDigits[c >> 4], kDigits[c & 15]};
    else
      found += c;
  }
  return found + "\"";
}

// The last one that fits; null: none does.
const Code* fitting(const std::vector<Code>& codes, bool is_library) {
  const auto fits = [&](const Code& code) {
    return code.processor == kSource ? is_library : Processor::here().runs(code.processor);
  };
  const auto found = std::find_if(codes.rbegin(), codes.rend(), fits);
  return found == codes.rend() ? nullptr : &*found;
}

std::shared_ptr<SharedObject> host_object(std::string_view code) {
  auto object = SharedObject::of_bytes(code);
  if (void* host = object->find("tenon_host"))
    *static_cast<const tenon_host_t**>(host) = &kHostThreads;
  return object;
}

// The one that takes such inputs. Raises where several forms do not.
const Method& form_for(const Method& first, std::span<const GivenTensor> inputs) {
  if (first.forms.empty() || inputs.size() != first.inputs.size() || has_sizes(first, inputs))
    return first;
  for (const auto* form : first.forms) {
    if (has_sizes(*form, inputs))
      return *form;
  }
  try {
    symbols_of(first, inputs);
  } catch (const Error& error) {
    std::string text = error.what();
    for (const auto* form : first.forms)
      text += "; or " + sizes_of_inputs(*form);
    fail(error.kind, text);
  }
  return first;
}

std::string names_of(const std::vector<Code>& codes) {
  std::string names;
  for (const auto& code : codes)
    names += (names.empty() ? "" : ", ") + code.processor;
  return names.empty() ? "none" : names;
}

}  // namespace

class Program::StateLock {
 public:
  explicit StateLock(Program& program) : program_(program), lock_(program.state_mutex_) {
    program_.changes_state_ = std::this_thread::get_id();
  }
  ~StateLock() {
    program_.changes_state_ = std::thread::id();
  }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  Program& program_;
  const std::lock_guard<std::mutex> lock_;
};

Program::Program(const std::string& path, const ProgramOptions& options)
    : file_(path, options.bytes, options.weights),
      pool_(options.threads > 0 ? options.threads : usable_processors()),
      library_(open_target(options.library, options.device)),
      plans_(file_.methods.size()) {
  const std::string target = library_ != nullptr ? library_->name() : "cpu";
  if (file_.target != target)
    fail(
        ErrorKind::unsupported,
        path,
        " was exported for the target '",
        file_.target,
        "', and is opened on '",
        target,
        library_ != nullptr ? "': open it with that target's library"
                            : "': open it with the path of that target's library");
  if (!options.unchecked_weights)
    file_.check_weights(pool_);
  load_kernels();
  // One whose sizes are fixed shows now that it fits.
  for (size_t k = 0; k < file_.methods.size(); ++k) {
    if (file_.methods[k].symbols.empty())
      plans_[k].keep(std::make_shared<MethodPlan>(plan_for(file_, file_.methods[k], {})));
  }
  if (library_ != nullptr && !library_->host_memory()) {
    device_ = std::make_unique<ProgramDevice>(library_, options.device, options.commit_each);
    device_->put(file_);
    return;
  }
  align_weights();
  for (const auto& state : file_.state_list)
    state_.push_back(memory_.emplace_back(aligned_memory(state.tensor.layout.nbytes)).get());
  first_state();
}

void Program::load_kernels() {
  bool is_code_wanted = false;
  for (auto& method : file_.methods) {
    resolve_calls(method.plan.plan, method);
    for (const auto& kernel : method.plan.plan.kernels)
      is_code_wanted = is_code_wanted || kernel.object.empty();
  }
  code_ = fitting(file_.codes, library_ != nullptr);
  if (is_code_wanted && code_ == nullptr)
    fail(
        ErrorKind::unsupported,
        file_.path(),
        " has kernels for: ",
        names_of(file_.codes),
        "; this processor is ",
        Processor::here().name(),
        ": export it for that one too");
  std::shared_ptr<SharedObject> object;
  for (auto& method : file_.methods) {
    for (const auto& kernel : method.plan.plan.kernels) {
      const auto& code = kernel.object.empty() ? *code_ : *file_.source_of(kernel);
      if (library_ == nullptr) {
        check_data(
            kernel.object.empty(),
            method.name,
            ": the kernel ",
            kernel.symbol,
            " is in a source, and this processor runs machine code");
        if (object == nullptr)
          object = host_object(file_.code(code));
        method.functions.push_back(reinterpret_cast<KernelFunction>(object->symbol(kernel.symbol)));
        method.owners.push_back(object);
      } else {
        auto loaded = library_->load(file_.code(code), kernel.symbol);
        method.functions.push_back(reinterpret_cast<KernelFunction>(loaded->address()));
        method.owners.push_back(std::move(loaded));
      }
    }
  }
}

// In a file of somebody else's a weight may lie where its elements are not aligned.
void Program::align_weights() {
  for (const auto& weight : file_.weight_list) {
    const auto bytes = file_.bytes_of(weight);
    const void* address = bytes.data();
    if (!is_aligned(address, weight.tensor.layout.dtype)) {
      auto& copy = memory_.emplace_back(aligned_memory(bytes.size()));
      std::memcpy(copy.get(), bytes.data(), bytes.size());
      address = copy.get();
    }
    weights_.push_back(address);
  }
}

void Program::first_state() {
  for (size_t k = 0; k < state_.size(); ++k) {
    const auto& [tensor, weight] = file_.state_list[k];
    if (tensor.layout.nbytes == 0)
      continue;
    if (weight < 0)
      std::memset(state_[k], 0, tensor.layout.nbytes);
    else
      std::memcpy(state_[k], weights_[static_cast<size_t>(weight)], tensor.layout.nbytes);
  }
}

std::shared_ptr<const MethodPlan> Program::plan(
    size_t method, std::span<const GivenTensor> inputs) {
  const auto& form = form_for(file_.methods[method], inputs);
  auto symbols = symbols_of(form, inputs);
  auto& plans = plans_[static_cast<size_t>(&form - file_.methods.data())];
  auto found = plans.find(symbols);
  if (found == nullptr) {
    found = std::make_shared<MethodPlan>(plan_for(file_, form, std::move(symbols)));
    plans.keep(found);
  }
  return found;
}

void Program::run(
    const MethodPlan& plan, std::span<const void* const> inputs, std::span<void* const> outputs) {
  std::optional<StateLock> lock;
  if (!file_.state_list.empty()) {
    lock.emplace(*this);
    if (!state_is_whole_)
      fail(
          ErrorKind::error,
          file_.path(),
          ": another thread ran it when this process was forked, so its state may be half changed: "
          "reset it first");
  }
  planned_bytes_ = plan.placement.nbytes;
  if (device_ != nullptr)
    device_->run(file_, plan, inputs, outputs);
  else
    run_here(plan, inputs, outputs);
}

void Program::run_here(
    const MethodPlan& plan, std::span<const void* const> inputs, std::span<void* const> outputs) {
  const auto& method = *plan.method;
  const auto& data = plan.data;
  const auto address = [&](const Source& source) -> const void* {
    switch (source.kind) {
      case Source::Kind::input:
        return inputs[source.number];
      case Source::Kind::weight:
        return weights_[source.number];
      case Source::Kind::state:
        return state_[source.number];
      case Source::Kind::symbol:
        return &plan.symbols[source.number];
      case Source::Kind::output:
        return outputs[source.number];
    }
    return nullptr;
  };
  const ThreadPool::Use use(pool_);
  HostRun host(plan, run_memory_);
  for (size_t k = 0; k < data.outputs.size(); ++k)
    host.given[data.outputs[k]] = outputs[method.plan_outputs[k]];
  Run run(data, *queue_, /*at_once=*/true, host);
  for (size_t k = 0; k < data.inputs.size(); ++k)
    run.place(data.inputs[k], const_cast<void*>(address(method.plan_inputs[k])));
  run.execute();
  raise_first(run.failures()());
  for (const auto& [output, source] : method.copies) {
    const auto nbytes = plan.outputs[output].nbytes;
    if (nbytes > 0)
      std::memmove(outputs[output], address(source), nbytes);
  }
}

void Program::in_child() {
  if (changes_state_.load() == std::this_thread::get_id())
    return;  // it goes on there
  state_is_whole_ = state_is_whole_ && changes_state_.exchange({}) == std::thread::id();
  new (&state_mutex_) std::mutex;
}

void Program::reset() {
  const StateLock lock(*this);
  device_ != nullptr ? device_->reset(file_) : first_state();
  state_is_whole_ = true;
}

std::string Program::facts() const {
  size_t weights = 0, state = 0;
  for (const auto& weight : file_.weight_list)
    weights += weight.tensor.layout.nbytes;
  for (const auto& one : file_.state_list)
    state += one.tensor.layout.nbytes;
  return text_of(
      "{\"producer\": ",
      json_text(file_.producer),
      ", \"target\": ",
      json_text(file_.target),
      ", \"code\": ",
      json_text(code_ != nullptr ? code_->processor : ""),
      ", \"threads\": ",
      pool_.size(),
      ", \"weights\": ",
      weights,
      ", \"state\": ",
      state,
      ", \"planned\": ",
      planned_bytes_.load(),
      ", \"replays\": ",
      device_ != nullptr ? device_->replays() : 0,
      "}");
}

}  // namespace tenon
