#include "runtime/program.h"

#include <algorithm>
#include <iterator>

#include "runtime/host_ops.h"
#include "runtime/processor.h"
#include "runtime/run.h"
#include "runtime/shared_object.h"

namespace tenon {
namespace {

std::string json_text(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string found;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x20) {
      const char escaped[] = {'\\', 'u', '0', '0', kDigits[c >> 4], kDigits[c & 15]};
      found.append(escaped, sizeof(escaped));
      continue;
    }
    if (c == '"' || c == '\\')
      found += '\\';
    found += c;
  }
  return found;
}

// The last one that fits; null: none does.
const Code* fitting(const std::vector<Code>& codes, bool is_library) {
  const Code* found = nullptr;
  for (const auto& code : codes) {
    if (code.processor == kSource ? is_library : Processor::here().runs(code.processor))
      found = &code;
  }
  return found;
}

std::shared_ptr<SharedObject> host_object(std::string_view code, const tenon_products_t* products) {
  auto object = SharedObject::of_bytes(code);
  const auto set = [&](const char* name, const void* value) {
    if (void* variable = object->find(name))
      *static_cast<const void**>(variable) = value;
  };
  set("tenon_host", &kHostThreads);
  set("tenon_products", products);
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
      text += text_of("; or {}", sizes_of_inputs(*form));
    throw Error(error.kind, text);
  }
  return first;
}

bool uses_state(const Method& method) {
  const auto is_state = [](const Source& source) { return source.kind == Source::Kind::state; };
  return std::ranges::any_of(method.plan_inputs, is_state) ||
         std::ranges::any_of(method.copies, is_state, &OutputCopy::source);
}

std::string names_of(const std::vector<Code>& codes) {
  std::string names;
  for (const auto& code : codes)
    add_to_list(names, code.processor);
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
        "{} was exported for the target '{}', and is opened on '{}': open it with that target's "
        "library",
        path,
        file_.target,
        target);
  if (!options.unchecked_weights)
    file_.check_weights(pool_);
  load_kernels(options.products);
  // One whose sizes are fixed shows now that it fits.
  for (size_t k = 0; k < file_.methods.size(); ++k) {
    if (file_.methods[k].symbols.empty())
      plans_[k].keep(plan_for(file_, file_.methods[k], {}));
  }
  runner_ = runner_for(library_, options.device, options.commit_each);
  runner_->put(file_);
}

void Program::load_kernels(const tenon_products_t* products) {
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
        "{} has kernels for: {}; this processor is {}: export it for that one too",
        file_.path(),
        names_of(file_.codes),
        Processor::here().name());
  std::shared_ptr<SharedObject> object;
  for (auto& method : file_.methods) {
    const auto& kernels = method.plan.plan.kernels;
    method.functions = std::vector<KernelFunction>(kernels.size());
    method.owners = std::vector<std::shared_ptr<KernelOwner>>(kernels.size());
    for (size_t k = 0; k < kernels.size(); ++k) {
      const auto& kernel = kernels[k];
      const auto& code = kernel.object.empty() ? *code_ : *file_.source_of(kernel);
      if (library_ == nullptr) {
        check_data(
            kernel.object.empty(),
            "{}: the kernel {} is in a source, and this processor runs machine code",
            method.name,
            kernel.symbol);
        if (object == nullptr)
          object = host_object(file_.code(code), products);
        method.functions[k] = reinterpret_cast<KernelFunction>(object->symbol(kernel.symbol));
        method.owners[k] = object;
      } else {
        auto loaded = library_->load(file_.code(code), kernel.symbol);
        method.functions[k] = reinterpret_cast<KernelFunction>(loaded->address());
        method.owners[k] = std::move(loaded);
      }
    }
  }
}

std::shared_ptr<const MethodPlan> Program::plan(
    size_t method, std::span<const GivenTensor> inputs) {
  const auto& form = form_for(file_.methods[method], inputs);
  auto symbols = symbols_of(form, inputs);
  auto& plans = plans_[static_cast<size_t>(&form - file_.methods.data())];
  auto found = plans.find(symbols);
  if (found == nullptr) {
    found = plan_for(file_, form, std::move(symbols));
    plans.keep(found);
  }
  return found;
}

void Program::run(
    const MethodPlan& plan, std::span<const void* const> inputs, std::span<void* const> outputs) {
  std::optional<StateLock> lock;
  if (!file_.state_list.empty()) {
    lock.emplace(*this);
    if (half_changed_by_ != nullptr && uses_state(*plan.method))
      fail(
          ErrorKind::error,
          "{}: {}, so its state may be half changed: reset it first",
          file_.path(),
          half_changed_by_);
  }
  planned_bytes_ = plan.placement.nbytes;
  const ThreadPool::Use use(pool_);
  try {
    runner_->run(plan, inputs, outputs);
  } catch (...) {
    // Every step of a run that fails runs, on whatever the failed one has left.
    if (uses_state(*plan.method))
      half_changed_by_ = "a call of it failed";
    throw;
  }
}

void Program::in_child() {
  if (changes_state_.load() == std::this_thread::get_id())
    return;  // it goes on there
  if (changes_state_.exchange({}) != std::thread::id())
    half_changed_by_ = "another thread ran it when this process was forked";
  new (&state_mutex_) std::mutex;
}

void Program::reset() {
  const StateLock lock(*this);
  runner_->reset();
  half_changed_by_ = nullptr;
}

std::string Program::facts() const {
  size_t weights = 0, state = 0;
  for (const auto& weight : file_.weight_list)
    weights += weight.tensor.layout.nbytes;
  for (const auto& one : file_.state_list)
    state += one.tensor.layout.nbytes;
  return text_of(
      "{\"producer\": \"{}\", \"target\": \"{}\", \"code\": \"{}\", \"threads\": {}, \"weights\": "
      "{}, "
      "\"state\": {}, \"planned\": {}, \"replays\": {}}",
      json_text(file_.producer),
      json_text(file_.target),
      json_text(code_ != nullptr ? code_->processor : ""),
      pool_.size(),
      weights,
      state,
      planned_bytes_.load(),
      runner_->replays());
}

}  // namespace tenon
