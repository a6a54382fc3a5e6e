#include <ATen/EmptyTensor.h>
#include <omp.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "execute/plan.h"

namespace py = pybind11;

namespace tenon {
namespace {

bool is_slot_tensor(py::handle x) {
  return py::isinstance<py::dict>(x) && x.contains("slot");
}

SlotTensor slot_tensor(py::handle x) {
  TensorLayout layout{
      py::module_::import("torch").attr(x["dtype"]).cast<at::ScalarType>(),
      x["sizes"].cast<std::vector<int64_t>>(),
      x["strides"].cast<std::vector<int64_t>>(),
      x["offset"].cast<int64_t>()};
  layout.nbytes = at::detail::computeStorageNbytes(
      layout.sizes, layout.strides, c10::elementSize(layout.dtype), layout.offset);
  return {x["slot"].cast<size_t>(), std::move(layout)};
}

KernelStep kernel_step(py::handle x, const std::vector<uintptr_t>& addresses) {
  const auto number = x["kernel"].cast<size_t>();
  return {
      reinterpret_cast<KernelFunction>(addresses.at(number)),
      number,
      x["slots"].cast<std::vector<size_t>>(),
      x["sizes"].cast<std::vector<int64_t>>(),
      x["checks"].cast<std::vector<std::vector<int32_t>>>()};
}

// An argument of that type; its tensors are added to the step's.
ArgumentPlan argument_plan(const py::object& x, const c10::Argument& argument, CallStep& step) {
  if (is_slot_tensor(x)) {
    step.tensors.push_back(slot_tensor(x));
    const auto kind = argument.real_type()->kind();
    const bool number = kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType;
    return {number ? ArgumentPlan::number : ArgumentPlan::tensor, {}, {}};
  }
  if (py::isinstance<py::list>(x) && std::any_of(x.begin(), x.end(), is_slot_tensor)) {
    const bool plain = argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
    const auto type = (plain ? c10::ListType::ofTensors() : c10::ListType::ofOptionalTensors());
    ArgumentPlan list{
        ArgumentPlan::list,
        c10::impl::GenericList(type->castRaw<c10::ListType>()->getElementType()),
        {}};
    for (const auto y : x)
      list.elements.push_back(
          y.is_none() ? ArgumentPlan()
                      : argument_plan(py::reinterpret_borrow<py::object>(y), argument, step));
    return list;
  }
  // `x * 2` reaches an op that takes tensors with a number.
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  return {ArgumentPlan::constant, torch::jit::toIValue(x, argument.type(), argument.N()), {}};
}

CallStep call_step(py::handle x) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      x["op"].cast<std::string>().c_str(), x["overload"].cast<std::string>().c_str());
  auto& counted = counter(x["route"].cast<std::string>(), x["counted"].cast<std::string>());
  CallStep step{op, {}, {}, {}, &counted, x["call"].cast<int32_t>()};
  const py::dict given = x["arguments"];
  const auto& schema = op.schema();
  size_t used = 0;
  for (const auto& argument : schema.arguments()) {
    if (given.contains(argument.name())) {
      step.arguments.push_back(argument_plan(given[argument.name().c_str()], argument, step));
      ++used;
      continue;
    }
    const auto& value = argument.default_value();
    TORCH_CHECK(value.has_value(), schema.name(), " lacks '", argument.name(), "'");
    step.arguments.push_back({ArgumentPlan::constant, *value, {}});
  }
  TORCH_CHECK(used == given.size(), schema.name(), " does not take all that is given");
  for (const auto y : x["results"])
    step.results.push_back(y.is_none() ? std::nullopt : std::optional(slot_tensor(y)));
  return step;
}

// See `PlanData` and `native` in torch_tenon/compiler/plan.py for the form of `data`.
PlanData plan_data(
    const py::dict& data,
    const std::vector<uintptr_t>& addresses,
    const std::vector<at::Tensor>& constants,
    const std::vector<std::tuple<std::string, std::string, uint64_t>>& kernels) {
  PlanData plan;
  for (const auto& [object, symbol, sum] : kernels)
    plan.kernels.push_back({object, symbol, sum});
  for (const auto x : data["slots"]) {
    const auto kind = static_cast<Slot::Kind>(x[py::int_(0)].cast<int>());
    Slot slot{kind, x[py::int_(1)].cast<size_t>()};
    if (slot.kind == Slot::Kind::overlaid)
      slot.under = x[py::int_(2)].cast<size_t>();
    if (slot.kind == Slot::Kind::constant)
      slot.tensor = constants.at(slot.number);
    plan.slots.push_back(std::move(slot));
  }
  plan.inputs = data["inputs"].cast<std::vector<size_t>>();
  plan.outputs = data["outputs"].cast<std::vector<size_t>>();
  plan.arena_bytes = data["arena_bytes"].cast<size_t>();
  for (const auto x : data["steps"]) {
    const auto name = x["name"].cast<std::string>();
    Step step{name, &counter("plan", name), KernelStep{}, {}};
    if (x.contains("kernel"))
      step.work = kernel_step(x, addresses);
    else
      step.work = call_step(x);
    step.allocated = x["allocated"].cast<std::vector<size_t>>();
    step.released = x["released"].cast<std::vector<size_t>>();
    plan.steps.push_back(std::move(step));
  }
  for (const auto x : data["results"])
    plan.results.push_back(slot_tensor(x));
  return plan;
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def(
      "release_threads",
      [] { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); },
      "Ends the OpenMP threads that work for the calling one.");
  m.def("set_timing", &set_timing, "Whether plans time their kernels, as counters of `plan`.");
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def(
          py::init([](const py::dict& data,
                      const std::vector<uintptr_t>& addresses,
                      const std::vector<at::Tensor>& constants,
                      const std::vector<std::tuple<std::string, std::string, uint64_t>>& kernels) {
            return std::make_shared<Plan>(plan_data(data, addresses, constants, kernels));
          }),
          py::arg("data"),
          py::arg("addresses"),
          py::arg("constants"),
          py::arg("kernels") = std::vector<std::tuple<std::string, std::string, uint64_t>>())
      .def(
          "run",
          torch::wrap_pybind_function([](const Plan& plan, py::list inputs, c10::Device device) {
            auto tensors = inputs.cast<std::vector<at::Tensor>>();
            inputs.attr("clear")();
            const py::gil_scoped_release no_gil;
            return plan.run(std::move(tensors), device);
          }),
          "Runs once; `inputs` is empty then, so that its tensors can be let go of.")
      .def(
          "run_in_place",
          torch::wrap_pybind_function_no_gil([](const Plan& plan,
                                                const std::vector<uintptr_t>& inputs,
                                                const std::vector<uintptr_t>& outputs,
                                                c10::Device device) {
            const auto pointers = [](const std::vector<uintptr_t>& addresses) {
              auto* first = reinterpret_cast<void* const*>(addresses.data());
              return c10::ArrayRef<void*>(first, addresses.size());
            };
            plan.run(pointers(inputs), pointers(outputs), device);
          }));
}

}  // namespace tenon
