#include "runtime/plan_check.h"

#include <algorithm>

namespace tenon {
namespace {

using Kind = Slot::Kind;
using Where = SizedNumber::Where;
using Field = SizedNumber::Field;

// A path below the directory of kernels: no way leads out of it.
bool is_name_of_file(std::string_view path) {
  size_t start = 0;
  for (;;) {
    const auto end = std::min(path.find('/', start), path.size());
    const auto part = path.substr(start, end - start);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != part.npos)
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
  PlanCheck(const PlanData& plan, size_t calls, bool in_files)
      : plan_(plan),
        calls_(static_cast<int64_t>(calls)),
        in_files_(in_files),
        has_memory_(plan.slots.size()) {}

  void check() {
    for (size_t k = 0; k < plan_.slots.size(); ++k) {
      const auto& slot = plan_.slots[k];
      check_data(slot.kind >= Kind::input && slot.kind <= Kind::unused, "no kind of a slot");
      has_memory_[k] = slot.kind == Kind::temporary || slot.kind == Kind::constant;
      check_data(
          slot.kind != Kind::constant || slot.number < plan_.constants.size(), "no constant {}", k);
    }
    check_passed(plan_.inputs, Kind::input);
    check_passed(plan_.outputs, Kind::output);
    for (const auto slot : plan_.inputs)
      has_memory_[slot] = true;
    for (const auto& kernel : plan_.kernels) {
      check_data(!in_files_ || is_name_of_file(kernel.object), "no name of a file of kernels");
      check_data(is_symbol(kernel.symbol), "no name of a kernel");
    }
    for (const auto& step : plan_.steps)
      check_step(step);
    for (const auto& result : plan_.results)
      check_slot(result.slot);
  }

 private:
  void check_slot(size_t slot) const {
    check_data(slot < plan_.slots.size(), "no slot {}", slot);
  }
  void check_recorded(int64_t call) const {
    check_data(call >= -1 && call < calls_, "no call {}", call);
  }
  // A step uses what is there when it runs.
  void check_used(size_t slot) const {
    check_slot(slot);
    check_data(has_memory_[slot], "slot {} has no memory", slot);
  }

  // Each slot of that kind is passed, and once.
  void check_passed(const std::vector<size_t>& slots, Kind kind) const {
    Flags passed(plan_.slots.size());
    for (const auto slot : slots) {
      check_slot(slot);
      check_data(plan_.slots[slot].kind == kind && !passed[slot], "slot {} is not passed", slot);
      passed[slot] = true;
    }
    for (size_t k = 0; k < passed.size(); ++k)
      check_data(plan_.slots[k].kind != kind || passed[k], "nobody passes slot {}", k);
  }

  void check_step(const Step& step) {
    for (const auto slot : step.allocated) {
      check_slot(slot);
      check_data(is_allocated(plan_.slots[slot].kind), "slot {} is not allocated", slot);
      has_memory_[slot] = true;
    }
    if (const auto* kernel = std::get_if<KernelStep>(&step.work))
      check_kernel(*kernel);
    else
      check_call(*std::get_if<CallStep>(&step.work));
    for (const auto slot : step.released) {
      check_slot(slot);
      const auto kind = plan_.slots[slot].kind;
      const bool is_let_go = kind == Kind::input || kind == Kind::block || kind == Kind::external;
      check_data(is_let_go && has_memory_[slot], "slot {} is not let go of", slot);
      has_memory_[slot] = false;
    }
    const auto& facts = *step.facts;
    for (const auto call : facts.calls)
      check_recorded(call);
    const auto marks = std::ranges::count(facts.detail, '?');
    check_data(static_cast<size_t>(marks) == facts.sizes.size(), "a profile's sizes are missing");
  }

  void check_kernel(const KernelStep& kernel) const {
    check_data(kernel.kernel < plan_.kernels.size(), "no kernel {}", kernel.kernel);
    for (const auto slot : kernel.slots)
      check_used(slot);
    const auto count = kernel.sizes.size();
    check_data(
        kernel.grid <= count && kernel.group <= kernel.grid && kernel.scratch <= 1 &&
            kernel.grid + kernel.group + kernel.scratch <= count,
        "a grid without numbers");
    for (const auto& calls : kernel.checks) {
      for (const auto call : calls)
        check_recorded(call);
    }
  }

  void check_call(const CallStep& step) {
    check_recorded(step.call);
    size_t tensors = 0;
    for (const auto& argument : step.arguments)
      tensors += tensors_of(argument, /*in_list=*/false);
    check_data(tensors == step.tensors.size(), "tensors of {}", step.op);
    for (const auto& tensor : step.tensors)
      check_used(tensor.slot);
    for (const auto& result : step.results) {
      if (!result)
        continue;
      check_slot(result->slot);
      const auto kind = plan_.slots[result->slot].kind;
      check_data(kind != Kind::constant, "a result in a constant");
      if (kind == Kind::external) {
        check_data(!has_memory_[result->slot], "slot {} is made twice", result->slot);
        has_memory_[result->slot] = true;
      }
      check_used(result->slot);
    }
  }

  static size_t tensors_of(const Argument& argument, bool in_list) {
    using ArgumentKind = Argument::Kind;
    const auto value = argument.value.kind;
    switch (argument.kind) {
      case ArgumentKind::constant:
        check_data(
            !in_list || value == Value::Kind::nothing || value == Value::Kind::undefined ||
                value == Value::Kind::number,
            "no tensor in a list of these");
        return 0;
      case ArgumentKind::tensor:
      case ArgumentKind::number:
        return 1;
      case ArgumentKind::list: {
        check_data(!in_list && value == Value::Kind::list, "no list of tensors");
        size_t tensors = 0;
        for (const auto& element : argument.elements)
          tensors += tensors_of(element, /*in_list=*/true);
        return tensors;
      }
    }
    fail(ErrorKind::damaged, "no kind of an argument");
  }

  const PlanData& plan_;
  const int64_t calls_;
  const bool in_files_;
  Flags has_memory_;  // by slot, as the steps go on
};

void check_in(const TensorLayout& layout, const SizedNumber& number) {
  check_data(number.field <= Field::offset, "no field of a tensor");
  if (number.field != Field::offset)
    check_data(number.at < layout.sizes.size(), "a size stands nowhere in the plan");
  check_data(layout.strides.size() == layout.sizes.size(), "strides of a tensor");
}

// Raises where the number stands nowhere in the plan.
void check_number(const PlanData& plan, const SizedNumber& number) {
  const auto check = [](size_t index, size_t size) {
    check_data(index < size, "a size stands nowhere in the plan");
  };
  if (number.where == Where::slot || number.where == Where::bytes) {
    check(number.index, plan.slots.size());
    check_data(
        number.where == Where::bytes || is_allocated(plan.slots[number.index].kind),
        "a size that is none of a slot");
    return;
  }
  check(number.index, plan.steps.size());
  const auto& work = plan.steps[number.index].work;
  const auto* call = std::get_if<CallStep>(&work);
  check_data((call == nullptr) == (number.where == Where::kernel), "no such step");
  switch (number.where) {
    case Where::kernel:
      return check(number.which, std::get_if<KernelStep>(&work)->sizes.size());
    case Where::tensor:
      check(number.which, call->tensors.size());
      return check_in(call->tensors[number.which].layout, number);
    case Where::result:
      check(number.which, call->results.size());
      check_data(call->results[number.which].has_value(), "no such result");
      return check_in(call->results[number.which]->layout, number);
    case Where::argument: {
      check(number.which, call->arguments.size());
      const auto& argument = call->arguments[number.which];
      const auto& value = argument.value;
      check_data(argument.kind == Argument::Kind::constant, "an argument that is no size");
      if (value.kind != Value::Kind::list)
        return check_data(value.kind == Value::Kind::integer, "an argument that is no size");
      check(number.at, value.elements.size());
      return check_data(
          value.elements[number.at].kind == Value::Kind::integer, "an argument that is no size");
    }
    default:
      fail(ErrorKind::damaged, "a size stands nowhere");
  }
}

// Of each slot the bytes that are there; none for more than there may be.
std::optional<std::vector<int64_t>> bytes_of_slots(
    const PlanData& plan, std::span<const int64_t> inputs, std::span<const int64_t> outputs) {
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
    there[k] = is_allocated(slot.kind) ? number
               : slot.kind == Kind::constant
                   ? static_cast<int64_t>(plan.constants[slot.number].layout.nbytes)
               : has_bytes ? nbytes
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
    const PlanData& plan, const std::vector<SizedNumber>& numbers, size_t calls, bool in_files) {
  PlanCheck(plan, calls, in_files).check();
  for (const auto& number : numbers)
    check_number(plan, number);
}

bool check_memory(
    const PlanData& plan, std::span<const int64_t> inputs, std::span<const int64_t> outputs) {
  const auto there = bytes_of_slots(plan, inputs, outputs);
  if (!there)
    return false;
  const auto lies_within = [&](const SlotTensor& tensor) {
    return is_sound(tensor.layout) &&
           static_cast<int64_t>(tensor.layout.nbytes) <= (*there)[tensor.slot];
  };
  for (const auto& step : plan.steps) {
    const auto* call = std::get_if<CallStep>(&step.work);
    if (call == nullptr)
      continue;
    if (!std::ranges::all_of(call->tensors, lies_within))
      return false;
    for (const auto& result : call->results) {
      if (result && !lies_within(*result))
        return false;
    }
  }
  return true;
}

}  // namespace tenon
