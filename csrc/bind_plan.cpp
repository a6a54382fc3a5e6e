#include "bind_plan.h"

#include <omp.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "execute/plan.h"
#include "interpreter_lock.h"

namespace py = pybind11;

namespace tenon {
namespace {

using torch::jit::toIValue;

Slot::Kind slot_kind(const std::string& name) {
  static const std::unordered_map<std::string, Slot::Kind> kinds = {
      {"input", Slot::Kind::input},
      {"output", Slot::Kind::output},
      {"temporary", Slot::Kind::temporary},
      {"lodged", Slot::Kind::lodged},
      {"block", Slot::Kind::block},
      {"external", Slot::Kind::external},
      {"constant", Slot::Kind::constant},
      {"unused", Slot::Kind::unused}};
  return kinds.at(name);
}

bool is_slot_tensor(py::handle x) {
  return py::isinstance<py::dict>(x) && x.contains("slot");
}

// Python's objects where data has their names: {"torch": "float32"}, {"complex": [0.0, 1.0]}.
py::object decoded(py::handle x) {
  if (py::isinstance<py::list>(x)) {
    py::list found;
    for (const auto y : x)
      found.append(decoded(y));
    return std::move(found);
  }
  if (!py::isinstance<py::dict>(x))
    return py::reinterpret_borrow<py::object>(x);
  if (x.contains("torch"))
    return py::module_::import("torch").attr(x["torch"].cast<std::string>().c_str());
  const auto parts = x["complex"].cast<std::vector<double>>();
  return py::cast(c10::complex<double>(parts.at(0), parts.at(1)));
}

SlotTensor slot_tensor(py::handle x) {
  return {
      x["slot"].cast<size_t>(),
      py::module_::import("torch")
          .attr(x["dtype"].cast<std::string>().c_str())
          .cast<at::ScalarType>(),
      x["sizes"].cast<std::vector<int64_t>>(),
      x["strides"].cast<std::vector<int64_t>>(),
      x["offset"].cast<int64_t>()};
}

std::optional<SlotTensor> optional_slot_tensor(py::handle x) {
  return x.is_none() ? std::nullopt : std::optional(slot_tensor(x));
}

KernelStep kernel_step(py::handle x, const std::vector<uintptr_t>& addresses) {
  return {
      reinterpret_cast<HostKernel>(addresses.at(x["kernel"].cast<size_t>())),
      x["slots"].cast<std::vector<size_t>>(),
      x["sizes"].cast<std::vector<int64_t>>()};
}

CallStep call_step(py::handle x) {
  using Tensors = CallStep::Tensors;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      x["op"].cast<std::string>().c_str(), x["overload"].cast<std::string>().c_str());
  CallStep step{
      op, {}, {}, {}, &counter(x["route"].cast<std::string>(), x["counted"].cast<std::string>())};
  const py::dict given = x["arguments"];
  const auto& schema = op.schema();
  size_t used = 0;
  for (const auto& argument : schema.arguments()) {
    if (!given.contains(argument.name())) {
      TORCH_CHECK(
          argument.default_value().has_value(), schema.name(), " lacks '", argument.name(), "'");
      step.arguments.push_back(*argument.default_value());
      continue;
    }
    ++used;
    const py::object value = given[argument.name().c_str()];
    Tensors tensors{Tensors::Kind::tensor, step.arguments.size(), {}};
    bool has_tensors = false;
    if (is_slot_tensor(value)) {
      has_tensors = true;
      tensors.tensors.push_back(slot_tensor(value));
      const auto kind = argument.real_type()->kind();
      if (kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType)
        tensors.kind = Tensors::Kind::number;
    } else if (py::isinstance<py::list>(value)) {
      for (const auto y : value)
        has_tensors = has_tensors || is_slot_tensor(y);
      if (has_tensors) {
        for (const auto y : value)
          tensors.tensors.push_back(optional_slot_tensor(y));
        const bool optional = argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
        tensors.kind = optional && !argument.type()->isSubtypeOf(*c10::ListType::ofTensors())
                           ? Tensors::Kind::optional_list
                           : Tensors::Kind::list;
      }
    }
    if (has_tensors) {
      step.tensors.push_back(std::move(tensors));
      step.arguments.emplace_back();
    } else {
      // `x * 2` reaches an op that takes tensors with a number.
      const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
      step.arguments.push_back(toIValue(decoded(value), argument.type(), argument.N()));
    }
  }
  TORCH_CHECK(used == given.size(), schema.name(), " does not take all that is given");
  for (const auto result : x["results"])
    step.results.push_back(optional_slot_tensor(result));
  return step;
}

// See `PlanData` in torch_tenon/compiler/plan.py for the form of `data`.
PlanData plan_data(
    const py::dict& data,
    const std::vector<uintptr_t>& addresses,
    const std::vector<at::Tensor>& constants) {
  PlanData plan;
  for (const auto x : data["slots"]) {
    Slot slot{slot_kind(x[py::int_(0)].cast<std::string>()), x[py::int_(1)].cast<size_t>()};
    if (slot.kind == Slot::Kind::lodged)
      slot.host = x[py::int_(2)].cast<size_t>();
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
                      const std::vector<at::Tensor>& constants) {
            return std::make_shared<Plan>(plan_data(data, addresses, constants));
          }),
          py::arg("data"),
          py::arg("addresses"),
          py::arg("constants"))
      .def_property_readonly("arena_bytes", [](const Plan& p) { return p.data().arena_bytes; })
      .def(
          "run",
          torch::wrap_pybind_function([](const Plan& plan, py::list inputs, c10::Device device) {
            auto tensors = inputs.cast<std::vector<at::Tensor>>();
            inputs.attr("clear")();
            const WithoutInterpreterLock no_gil;
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
              std::vector<void*> found;
              for (const auto address : addresses)
                found.push_back(reinterpret_cast<void*>(address));
              return found;
            };
            plan.run(pointers(inputs), pointers(outputs), device);
          }));
}

}  // namespace tenon
