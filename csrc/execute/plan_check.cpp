#include "execute/plan_check.h"

#include <algorithm>

#include "record/op_rules.h"
#include "record/sound.h"

namespace tenon {
namespace {

using Kind = Slot::Kind;

// A path below the cache directory: no way leads out of it.
bool is_name_of_file(const std::string& path) {
  size_t start = 0;
  for (;;) {
    const auto end = std::min(path.find('/', start), path.size());
    const auto part = path.substr(start, end - start);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string::npos)
      return false;
    if (end == path.size())
      return true;
    start = end + 1;
  }
}

bool is_symbol(const std::string& name) {
  return !name.empty() && name.find('\0') == std::string::npos;
}

// The kinds that hold memory of a run's own, which it has from one step to another.
bool is_allocated(Kind kind) {
  return kind == Kind::output || kind == Kind::block;
}

class PlanCheck {
 public:
  PlanCheck(const PlanData& plan, const WindowPlan& window)
      : plan_(plan), window_(window), calls_(static_cast<int64_t>(window.calls.size())) {}

  void check() {
    for (const auto& slot : plan_.slots)
      TORCH_CHECK(slot.kind >= Kind::input && slot.kind <= Kind::unused, "no kind of a slot");
    has_memory_.resize(plan_.slots.size());
    for (size_t k = 0; k < plan_.slots.size(); ++k) {
      const auto kind = plan_.slots[k].kind;
      has_memory_[k] = kind == Kind::temporary || kind == Kind::constant;
    }
    check_passed(plan_.inputs, Kind::input);
    check_passed(plan_.outputs, Kind::output);
    for (const auto slot : plan_.inputs)
      has_memory_[slot] = true;
    for (const auto& kernel : plan_.kernels) {
      TORCH_CHECK(is_name_of_file(kernel.object), "no name of a file of kernels");
      TORCH_CHECK(is_symbol(kernel.symbol), "no name of a kernel");
    }
    for (const auto& step : plan_.steps)
      check_step(step);
    for (const auto& result : plan_.results)
      check_slot(result.slot);
  }

 private:
  void check_slot(size_t slot) const {
    TORCH_CHECK(slot < plan_.slots.size(), "no slot ", slot);
  }
  void check_call(int64_t call) const {
    TORCH_CHECK(call >= -1 && call < calls_, "no call ", call);
  }
  // A step uses what is there when it runs.
  void check_used(size_t slot) const {
    check_slot(slot);
    TORCH_CHECK(has_memory_[slot], "slot ", slot, " has no memory");
  }

  // Each slot of that kind is passed, and once.
  void check_passed(const std::vector<size_t>& slots, Kind kind) const {
    std::vector<bool> passed(plan_.slots.size());
    for (const auto slot : slots) {
      check_slot(slot);
      TORCH_CHECK(plan_.slots[slot].kind == kind && !passed[slot], "slot ", slot, " is not passed");
      passed[slot] = true;
    }
    for (size_t k = 0; k < passed.size(); ++k)
      TORCH_CHECK(plan_.slots[k].kind != kind || passed[k], "nobody passes slot ", k);
  }

  void check_step(const Step& step) {
    for (const auto slot : step.allocated) {
      check_slot(slot);
      TORCH_CHECK(is_allocated(plan_.slots[slot].kind), "slot ", slot, " is not allocated");
      has_memory_[slot] = true;
    }
    if (const auto* kernel = std::get_if<KernelStep>(&step.work))
      check_kernel(*kernel);
    else
      check_call(std::get<CallStep>(step.work));
    for (const auto slot : step.released) {
      check_slot(slot);
      const auto kind = plan_.slots[slot].kind;
      TORCH_CHECK(
          kind == Kind::input || kind == Kind::block || kind == Kind::external,
          "slot ",
          slot,
          " is not let go of");
      has_memory_[slot] = false;
    }
    const auto& facts = *step.facts;
    for (const auto call : facts.calls)
      check_call(call);
    const auto marks = std::count(facts.detail.begin(), facts.detail.end(), '?');
    TORCH_CHECK(static_cast<size_t>(marks) == facts.sizes.size(), "a profile's sizes are missing");
  }

  void check_kernel(const KernelStep& kernel) const {
    TORCH_CHECK(kernel.kernel < plan_.kernels.size(), "no kernel ", kernel.kernel);
    for (const auto slot : kernel.slots)
      check_used(slot);
    for (const auto& calls : kernel.checks) {
      for (const auto call : calls)
        check_call(call);
    }
  }

  void check_call(const CallStep& step) {
    const auto& schema = step.op.schema();
    check_may_be_called(step.op);
    check_call(step.call);
    TORCH_CHECK(step.arguments.size() == schema.arguments().size(), "arguments of ", schema.name());
    size_t tensors = 0;
    for (size_t k = 0; k < step.arguments.size(); ++k)
      tensors += check_argument(step.arguments[k], schema.arguments()[k]);
    TORCH_CHECK(tensors == step.tensors.size(), "tensors of ", schema.name());
    for (const auto& tensor : step.tensors)
      check_used(tensor.slot);
    for (const auto& result : step.results) {
      if (!result)
        continue;
      check_slot(result->slot);
      const auto kind = plan_.slots[result->slot].kind;
      TORCH_CHECK(kind != Kind::constant, "a result in a constant");
      if (kind == Kind::external)
        has_memory_[result->slot] = true;
      check_used(result->slot);
    }
  }

  // An op of PyTorch's or of the device's, or of a package that the window has ops of; none that
  // opens files.
  void check_may_be_called(const c10::OperatorHandle& op) const {
    const auto& schema = op.schema();
    const auto space = schema.getNamespace();
    const bool is_of_window =
        std::any_of(window_.calls.begin(), window_.calls.end(), [&](const auto* call) {
          return call->op->op.schema().getNamespace() == space;
        });
    TORCH_CHECK(is_of_window || !is_foreign(op), schema.name(), " is no op of the window's");
    for (const auto& argument : schema.arguments())
      TORCH_CHECK(argument.name() != "filename", schema.name(), " opens a file");
  }

  // How many tensors it takes.
  static size_t check_argument(const ArgumentPlan& argument, const c10::Argument& declared) {
    switch (argument.kind) {
      case ArgumentPlan::constant:
        TORCH_CHECK(
            argument.value.type()->isSubtypeOf(*declared.type()),
            declared.name(),
            " of another type: ",
            argument.value.tagKind());
        return 0;
      case ArgumentPlan::tensor:
      case ArgumentPlan::number:
        return 1;
      case ArgumentPlan::list: {
        TORCH_CHECK(argument.value.isList(), "no list of tensors");
        size_t tensors = 0;
        for (const auto& element : argument.elements) {
          TORCH_CHECK(
              element.kind == ArgumentPlan::tensor || element.kind == ArgumentPlan::number ||
                  (element.kind == ArgumentPlan::constant &&
                   (element.value.isNone() || element.value.isTensor())),
              "no tensor in a list of these");
          tensors += element.kind != ArgumentPlan::constant;
        }
        return tensors;
      }
    }
    TORCH_CHECK(false, "no kind of an argument");
  }

  const PlanData& plan_;
  const WindowPlan& window_;
  const int64_t calls_;
  std::vector<bool> has_memory_;  // by slot, as the steps go on
};

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
  TORCH_CHECK(
      inputs.size() == plan.inputs.size() && outputs.size() == plan.outputs.size(),
      "inputs or outputs are missing");
  size_t numbers = 0;
  for (const auto* call : window.calls) {
    for (const auto& argument : call->arguments)
      numbers += numbers_of(argument);
  }
  const auto slots = static_cast<int64_t>(window.slots.size());
  for (const int64_t k : inputs) {
    TORCH_CHECK(k < slots && -1 - k < static_cast<int64_t>(numbers), "no input ", k);
    TORCH_CHECK(k < 0 || !window.slots[k].fresh, "input ", k, " has no memory");
  }
  for (const int64_t k : outputs) {
    TORCH_CHECK(k >= 0 && k < slots, "no output ", k);
    TORCH_CHECK(!window.slots[k].fresh || window.slots[k].alive, "nobody keeps output ", k);
  }
}

// Of each slot the bytes that are there; none for more than there may be.
std::optional<std::vector<int64_t>> bytes_of_slots(
    const PlanData& plan, c10::ArrayRef<int64_t> inputs, c10::ArrayRef<int64_t> outputs) {
  std::vector<int64_t> there(plan.slots.size());
  const auto arena = static_cast<int64_t>(plan.arena_bytes);
  if (arena < 0 || arena > kMostTensorBytes)
    return std::nullopt;
  for (size_t k = 0; k < plan.slots.size(); ++k) {
    const auto& slot = plan.slots[k];
    const auto number = static_cast<int64_t>(slot.number);
    const auto nbytes = static_cast<int64_t>(slot.nbytes);
    if (number < 0 || number > kMostTensorBytes || nbytes < 0 || nbytes > kMostTensorBytes)
      return std::nullopt;
    if (slot.kind == Kind::temporary && number > arena - nbytes)
      return std::nullopt;
    const bool has_bytes = slot.kind == Kind::temporary || slot.kind == Kind::external;
    there[k] = is_allocated(slot.kind)       ? number
               : slot.kind == Kind::constant ? static_cast<int64_t>(slot.tensor.nbytes())
               : has_bytes                   ? nbytes
                                             : 0;
  }
  for (size_t k = 0; k < plan.inputs.size(); ++k) {
    const auto slot = plan.inputs[k];
    there[slot] = inputs[k];
    if (static_cast<int64_t>(plan.slots[slot].nbytes) > inputs[k])
      return std::nullopt;
  }
  for (size_t k = 0; k < plan.outputs.size(); ++k) {
    if (there[plan.outputs[k]] > outputs[k])
      return std::nullopt;
  }
  return there;
}

}  // namespace

void check_plan(
    const PlanData& plan,
    const WindowPlan& window,
    const std::vector<int32_t>& inputs,
    const std::vector<int32_t>& outputs) {
  check_slots_of_window(plan, window, inputs, outputs);
  PlanCheck(plan, window).check();
}

void check_numbers(const PlanData& plan, const std::vector<SizedNumber>& numbers) {
  const auto check = [](size_t index, size_t size) {
    TORCH_CHECK(index < size, "a size stands nowhere in the plan");
  };
  const auto check_in = [&](const TensorLayout& layout, const SizedNumber& number) {
    TORCH_CHECK(number.field <= SizedNumber::offset, "no field of a tensor");
    if (number.field != SizedNumber::offset)
      check(number.at, layout.sizes.size());
    TORCH_CHECK(layout.strides.size() == layout.sizes.size(), "strides of a tensor");
  };
  for (const auto& number : numbers) {
    if (number.where == SizedNumber::slot || number.where == SizedNumber::bytes) {
      check(number.index, plan.slots.size());
      continue;
    }
    check(number.index, plan.steps.size());
    const auto& work = plan.steps[number.index].work;
    const auto* call = std::get_if<CallStep>(&work);
    TORCH_CHECK((call == nullptr) == (number.where == SizedNumber::kernel), "no such step");
    switch (number.where) {
      case SizedNumber::kernel:
        check(number.which, std::get<KernelStep>(work).sizes.size());
        break;
      case SizedNumber::tensor:
        check(number.which, call->tensors.size());
        check_in(call->tensors[number.which].layout, number);
        break;
      case SizedNumber::result:
        check(number.which, call->results.size());
        TORCH_CHECK(call->results[number.which].has_value(), "no such result");
        check_in(call->results[number.which]->layout, number);
        break;
      case SizedNumber::argument: {
        check(number.which, call->arguments.size());
        const auto& argument = call->arguments[number.which];
        TORCH_CHECK(
            argument.kind == ArgumentPlan::constant &&
                (argument.value.isInt() || argument.value.isIntList()),
            "an argument that is no size");
        if (argument.value.isIntList())
          check(number.at, argument.value.toListRef().size());
        break;
      }
      default:
        TORCH_CHECK(false, "a size stands nowhere");
    }
  }
}

bool check_memory(
    const PlanData& plan, c10::ArrayRef<int64_t> inputs, c10::ArrayRef<int64_t> outputs) {
  auto there = bytes_of_slots(plan, inputs, outputs);
  if (!there)
    return false;
  const auto lies_within = [&](const SlotTensor& tensor) {
    return is_sound(tensor.layout) &&
           static_cast<int64_t>(tensor.layout.nbytes) <= there->at(tensor.slot);
  };
  for (const auto& step : plan.steps) {
    const auto* call = std::get_if<CallStep>(&step.work);
    if (call == nullptr)
      continue;
    if (!std::all_of(call->tensors.begin(), call->tensors.end(), lies_within))
      return false;
    for (const auto& result : call->results) {
      if (result && !lies_within(*result))
        return false;
    }
  }
  return true;
}

}  // namespace tenon
