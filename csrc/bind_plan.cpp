#include <ATen/EmptyTensor.h>
#include <omp.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "execute/launch.h"
#include "execute/plan.h"
#include "execute/room.h"
#include "execute/sized_plan.h"

namespace py = pybind11;

namespace tenon {
namespace {

bool is_slot_tensor(py::handle x) {
  return py::isinstance<py::dict>(x) && x.contains("slot");
}

// Reads a plan: see `PlanData` and `native` in torch_tenon/compiler/plan.py for the form of the
// data. A number that is an expression of sizes is {"example": its value, "words": see
// record/sizes.h}.
class PlanReader {
 public:
  PlanReader(
      const std::vector<uintptr_t>& addresses,
      const std::vector<at::Tensor>& constants,
      const std::vector<std::tuple<std::string, std::string, uint64_t>>& kernels,
      std::vector<std::shared_ptr<KernelOwner>> owners)
      : addresses_(addresses), constants_(constants) {
    plan.owners = std::move(owners);
    for (const auto& [object, symbol, sum] : kernels)
      plan.kernels.push_back({object, symbol, sum});
  }

  void read(const py::dict& data) {
    for (const auto x : data["slots"])
      plan.slots.push_back(slot(x));
    plan.inputs = data["inputs"].cast<std::vector<size_t>>();
    plan.outputs = data["outputs"].cast<std::vector<size_t>>();
    plan.arena_bytes = data["arena_bytes"].cast<size_t>();
    for (const auto x : data["steps"])
      plan.steps.push_back(step(x));
    for (const auto x : data["results"])
      plan.results.push_back(slot_tensor(x, std::nullopt));
  }

  PlanData plan;
  std::vector<SizedNumber> numbers;

 private:
  using Where = SizedNumber::Where;

  // A number that stands at `place`; without that, of a plan's own results, which nobody asks for
  // where sizes may have any value.
  int64_t number(py::handle x, std::optional<SizedNumber> place) {
    if (!py::isinstance<py::dict>(x))
      return x.cast<int64_t>();
    if (place) {
      place->value.words = x["words"].cast<std::vector<int64_t>>();
      numbers.push_back(std::move(*place));
    }
    return x["example"].cast<int64_t>();
  }

  Slot slot(py::handle x) {
    const auto kind = static_cast<Slot::Kind>(x[py::int_(0)].cast<int>());
    const SizedNumber place{Where::slot, plan.slots.size()};
    Slot made{kind, static_cast<size_t>(number(x[py::int_(1)], place))};
    if (py::len(x) > 2) {
      const SizedNumber bytes{Where::bytes, plan.slots.size()};
      made.nbytes = static_cast<size_t>(number(x[py::int_(2)], bytes));
    }
    if (made.kind == Slot::Kind::constant)
      made.tensor = constants_.at(made.number);
    return made;
  }

  SlotTensor slot_tensor(py::handle x, std::optional<SizedNumber> place) {
    TensorLayout layout{py::module_::import("torch").attr(x["dtype"]).cast<at::ScalarType>()};
    const auto all = [&](const char* name, SizedNumber::Field field) {
      std::vector<int64_t> found;
      for (const auto y : x[name]) {
        if (place) {
          place->field = field;
          place->at = found.size();
        }
        found.push_back(number(y, place));
      }
      return found;
    };
    layout.sizes = all("sizes", SizedNumber::size);
    layout.strides = all("strides", SizedNumber::stride);
    if (place)
      place->field = SizedNumber::offset;
    layout.offset = number(x["offset"], place);
    layout.nbytes = at::detail::computeStorageNbytes(
        layout.sizes, layout.strides, c10::elementSize(layout.dtype), layout.offset);
    return {x["slot"].cast<size_t>(), std::move(layout)};
  }

  static SizeExpression expression(py::handle x) {
    if (py::isinstance<py::dict>(x))
      return {x["words"].cast<std::vector<int64_t>>()};
    return SizeExpression::of(SizeExpression::constant, x.cast<int64_t>());
  }

  static std::shared_ptr<const StepFacts> facts(py::handle x) {
    std::vector<SizeExpression> sizes;
    for (const auto y : x["detail_sizes"])
      sizes.push_back(expression(y));
    return std::make_shared<StepFacts>(StepFacts{
        x["detail"].cast<std::string>(),
        std::move(sizes),
        x["calls"].cast<std::vector<int32_t>>(),
        expression(x["bytes"]),
        expression(x["operations"])});
  }

  Step step(py::handle x) {
    const auto name = x["name"].cast<std::string>();
    Step made{name, &counter("plan", name), facts(x), KernelStep{}, {}, {}};
    if (x.contains("kernel"))
      made.work = kernel_step(x);
    else
      made.work = call_step(x);
    made.allocated = x["allocated"].cast<std::vector<size_t>>();
    made.released = x["released"].cast<std::vector<size_t>>();
    return made;
  }

  KernelStep kernel_step(py::handle x) {
    const auto kernel = x["kernel"].cast<size_t>();
    std::vector<int64_t> sizes;
    for (const auto y : x["sizes"])
      sizes.push_back(number(y, SizedNumber{Where::kernel, plan.steps.size(), sizes.size()}));
    return {
        reinterpret_cast<KernelFunction>(addresses_.at(kernel)),
        kernel,
        x["slots"].cast<std::vector<size_t>>(),
        std::move(sizes),
        x["checks"].cast<std::vector<std::vector<int32_t>>>()};
  }

  // A constant, whose sizes of any value are noted.
  py::object constant(const py::object& x, SizedNumber place) {
    if (py::isinstance<py::dict>(x))
      return py::int_(number(x, place));
    if (!py::isinstance<py::list>(x))
      return x;
    py::list all;
    for (const auto y : x) {
      place.at = all.size();
      const bool sized = py::isinstance<py::dict>(y);
      all.append(
          sized ? py::object(py::int_(number(y, place))) : py::reinterpret_borrow<py::object>(y));
    }
    return all;
  }

  // An argument of that type; its tensors are added to the step's.
  ArgumentPlan argument_plan(const py::object& x, const c10::Argument& argument, CallStep& step) {
    if (is_slot_tensor(x)) {
      step.tensors.push_back(
          slot_tensor(x, SizedNumber{Where::tensor, plan.steps.size(), step.tensors.size()}));
      auto type = argument.real_type();
      if (const auto optional = type->cast<c10::OptionalType>())
        type = optional->getElementType();
      const auto kind = type->kind();
      const bool is_number = kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType;
      return {is_number ? ArgumentPlan::number : ArgumentPlan::tensor, {}, {}};
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
    const torch::jit::ToIValueAllowNumbersAsTensors allowed(true);
    const auto plain =
        constant(x, SizedNumber{Where::argument, plan.steps.size(), step.arguments.size()});
    return {ArgumentPlan::constant, torch::jit::toIValue(plain, argument.type(), argument.N()), {}};
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
    for (const auto y : x["results"]) {
      const SizedNumber place{Where::result, plan.steps.size(), step.results.size()};
      step.results.push_back(y.is_none() ? std::nullopt : std::optional(slot_tensor(y, place)));
    }
    return step;
  }

  const std::vector<uintptr_t>& addresses_;
  const std::vector<at::Tensor>& constants_;
};

}  // namespace

void bind_plan(py::module_& m) {
  m.def(
      "release_threads",
      [] { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); },
      "Ends the OpenMP threads that work for the calling one.");
  m.def(
      "launch",
      torch::wrap_pybind_function_no_gil(&launch_over),
      "Enqueues a kernel of the target's over tensors: see torch_tenon.launch.");
  m.def("set_commit_each", &set_commit_each, "Whether the host waits after every step of a plan.");
  m.def(
      "set_timing",
      &set_timing,
      "Whether plans time their kernels, as counters of `plan`; gives what was before.");
  py::class_<KernelOwner, std::shared_ptr<KernelOwner>>(
      m, "KernelOwner", "What kernels lie in, for as long as a plan with one of them is there.");
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def(
          py::init([](const py::dict& data,
                      const std::vector<uintptr_t>& addresses,
                      const std::vector<at::Tensor>& constants,
                      const std::vector<std::tuple<std::string, std::string, uint64_t>>& kernels,
                      std::vector<std::shared_ptr<KernelOwner>> owners) {
            PlanReader reader(addresses, constants, kernels, std::move(owners));
            reader.read(data);
            TORCH_CHECK(reader.numbers.empty(), "a plan for one set of sizes has others");
            return std::make_shared<Plan>(std::move(reader.plan));
          }),
          py::arg("data"),
          py::arg("addresses"),
          py::arg("constants"),
          py::arg("kernels") = std::vector<std::tuple<std::string, std::string, uint64_t>>(),
          py::arg("owners") = std::vector<std::shared_ptr<KernelOwner>>())
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
          "run_from_host",
          torch::wrap_pybind_function(&Plan::run_from_host),
          "Runs once, on copies of the host's tensors; gives the outputs as bytes.")
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
  m.def("note_room", &note_room, "A window ran so many seconds, and left the builder a processor.");
  m.def("need_no_room", &need_no_room, "The builder does not work for this process.");
  m.def("threads_beside_builder", &threads_beside_builder, "Of a plan's run; 0: all.");
  py::class_<Pace>(m, "Pace", "How many threads share the loops of a plan (execute/pace.h).")
      .def(py::init<bool>(), py::arg("sized") = false)
      .def("halvings", &Pace::halvings, "For the next run: how often the threads are to be halved.")
      .def("note", &Pace::note, "What a run with so many halvings took, and how much it made.");
  py::class_<SizedPlan, std::shared_ptr<SizedPlan>>(m, "SizedPlan")
      .def(
          py::init([](const py::dict& data,
                      const std::vector<uintptr_t>& addresses,
                      const std::vector<at::Tensor>& constants,
                      const std::vector<std::tuple<std::string, std::string, uint64_t>>& kernels,
                      std::vector<std::shared_ptr<KernelOwner>> owners) {
            PlanReader reader(addresses, constants, kernels, std::move(owners));
            reader.read(data);
            return std::make_shared<SizedPlan>(std::move(reader.plan), std::move(reader.numbers));
          }),
          py::arg("data"),
          py::arg("addresses"),
          py::arg("constants"),
          py::arg("kernels") = std::vector<std::tuple<std::string, std::string, uint64_t>>(),
          py::arg("owners") = std::vector<std::shared_ptr<KernelOwner>>());
}

}  // namespace tenon
