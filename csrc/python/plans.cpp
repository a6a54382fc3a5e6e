#include <omp.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>

#include "device/counters.h"
#include "device/interpreter.h"
#include "execute/launch.h"
#include "execute/plan.h"

namespace py = pybind11;

namespace tenon {
namespace {

// A constant that is given beside a plan's bytes, in memory of the host.
Constant constant_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu(), "a plan's constant lies on ", tensor.device());
  auto kept = std::make_shared<at::Tensor>(tensor);
  Constant made{layout_of(tensor), tensor.numel() > 0 ? tensor.data_ptr() : nullptr, kept};
  made.layout.nbytes -= static_cast<size_t>(made.layout.offset) * tensor.itemsize();
  made.layout.offset = 0;
  return made;
}

// The plan of these bytes (runtime/plan_format.h), with kernels of this process.
PlanOfAnySize plan_of(
    const py::bytes& bytes,
    const std::vector<uintptr_t>& addresses,
    const std::vector<at::Tensor>& constants,
    std::vector<std::shared_ptr<KernelOwner>> owners) {
  auto found = read_plan(static_cast<std::string_view>(bytes));
  auto& plan = found.plan;
  for (const auto& constant : constants)
    plan.constants.push_back(constant_of(constant));
  for (const auto& slot : plan.slots)
    TORCH_CHECK(
        slot.kind != Slot::Kind::constant || slot.number < plan.constants.size(),
        "a plan lacks its constant ",
        slot.number);
  plan.owners = std::move(owners);
  for (auto& step : plan.steps) {
    if (auto* kernel = std::get_if<KernelStep>(&step.work))
      kernel->function = reinterpret_cast<KernelFunction>(addresses.at(kernel->kernel));
  }
  return found;
}

void add_tensors(std::vector<at::Tensor>& found, py::handle argument) {
  if (THPVariable_Check(argument.ptr())) {
    found.push_back(THPVariable_Unpack(argument.ptr()));
  } else if (PyList_Check(argument.ptr()) || PyTuple_Check(argument.ptr())) {
    for (const auto each : py::reinterpret_borrow<py::sequence>(argument))
      add_tensors(found, each);
  }
}

py::object call_library(
    const std::string& op,
    const py::function& function,
    const py::tuple& arguments,
    const py::dict& keywords,
    const std::vector<at::Tensor>& written) {
  std::vector<at::Tensor> tensors;
  add_tensors(tensors, arguments);
  for (const auto& [name, argument] : keywords)
    add_tensors(tensors, argument);
  std::erase_if(tensors, [&](const at::Tensor& t) {
    return std::ranges::any_of(written, [&](const auto& w) { return t.is_alias_of(w); });
  });
  const auto start = std::chrono::steady_clock::now();
  const LibraryCall call(op, std::move(tensors));
  auto made = function(*arguments, **keywords);
  if (made.ptr() != Py_NotImplemented) {
    auto& counted = counter("library", op);
    counted.calls.fetch_add(1, std::memory_order_relaxed);
    counted.nanoseconds.fetch_add(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count(),
        std::memory_order_relaxed);
  }
  return made;
}

}  // namespace

void bind_plans(py::module_& m) {
  py::class_<KernelOwner, std::shared_ptr<KernelOwner>>(
      m, "KernelOwner", "What kernels lie in, for as long as a plan with one of them is there.");
  m.def(
      "release_threads",
      [] { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); },
      "Ends the OpenMP threads that work for the calling one.");
  m.def(
      "launch",
      torch::wrap_pybind_function_no_gil([](uintptr_t kernel,
                                            std::vector<std::optional<at::Tensor>> tensors,
                                            std::vector<int64_t> numbers,
                                            std::vector<int64_t> grid,
                                            std::vector<int64_t> group,
                                            int64_t scratch,
                                            std::optional<std::vector<int64_t>> writes,
                                            std::shared_ptr<KernelOwner> owner) {
        launch_over(
            {kernel,
             std::move(tensors),
             std::move(numbers),
             std::move(grid),
             std::move(group),
             scratch,
             std::move(writes),
             std::move(owner)});
      }),
      py::arg("kernel"),
      py::arg("tensors"),
      py::arg("numbers"),
      py::arg("grid") = std::vector<int64_t>(),
      py::arg("group") = std::vector<int64_t>(),
      py::arg("scratch") = 0,
      py::arg("writes") = std::optional<std::vector<int64_t>>(),
      py::arg("owner") = std::shared_ptr<KernelOwner>(),
      "Enqueues a kernel of the target's over tensors: see torch_tenon.launch.");
  m.def(
      "call_library",
      &call_library,
      "Calls the function that a target's library has for an op, which is counted unless it gives "
      "NotImplemented. What it launches reads the arguments, but for those that are `written`.");
  m.def("set_commit_each", &set_commit_each, "Whether the host waits after every step of a plan.");
  m.def(
      "set_timing",
      &set_timing,
      "Whether plans time their kernels, as counters of `plan`; gives what was before.");
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def(
          py::init([](const py::bytes& bytes,
                      const std::vector<uintptr_t>& addresses,
                      const std::vector<at::Tensor>& constants,
                      std::vector<std::shared_ptr<KernelOwner>> owners) {
            auto found = plan_of(bytes, addresses, constants, std::move(owners));
            TORCH_CHECK(found.numbers.empty(), "a plan for one set of sizes has others");
            return std::make_shared<Plan>(std::move(found.plan));
          }),
          py::arg("data"),
          py::arg("addresses"),
          py::arg("constants") = std::vector<at::Tensor>(),
          py::arg("owners") = std::vector<std::shared_ptr<KernelOwner>>())
      .def(
          "run",
          torch::wrap_pybind_function([](const Plan& plan,
                                         py::list inputs,
                                         c10::Device device,
                                         const std::vector<size_t>& lost) {
            auto tensors = inputs.cast<std::vector<at::Tensor>>();
            inputs.attr("clear")();
            const ReleasedInterpreter no_gil;
            return plan.run(std::move(tensors), device, lost);
          }),
          py::arg("inputs"),
          py::arg("device"),
          py::arg("lost") = std::vector<size_t>(),
          "Runs once; `inputs` is empty then, so that its tensors can be let go of. Where it "
          "fails, the inputs `lost` have the error from then on.")
      .def(
          "run_in_place",
          torch::wrap_pybind_function_no_gil([](const Plan& plan,
                                                const std::vector<uintptr_t>& inputs,
                                                const std::vector<uintptr_t>& outputs,
                                                c10::Device device,
                                                const std::vector<size_t>& written) {
            const auto pointers = [](const std::vector<uintptr_t>& addresses) {
              auto* first = reinterpret_cast<void* const*>(addresses.data());
              return c10::ArrayRef<void*>(first, addresses.size());
            };
            plan.run(pointers(inputs), pointers(outputs), device, written);
          }),
          py::arg("inputs"),
          py::arg("outputs"),
          py::arg("device"),
          py::arg("written") = std::vector<size_t>(),
          "Runs once over memory of the host's. A device that cannot reach it runs on copies: the "
          "outputs and the `written` inputs go back.");
  m.def("note_room", &note_room, "A window ran so many seconds, and left the builder a processor.");
  m.def("need_no_room", &need_no_room, "The builder does not work for this process.");
  m.def("threads_beside_builder", &threads_beside_builder, "Of what runs now; 0: all.");
  py::class_<Pace>(m, "Pace", "How many threads share the loops of a plan (execute/run_threads.h).")
      .def(py::init<bool>(), py::arg("sized") = false)
      .def("halvings", &Pace::halvings, "For the next run: how often the threads are to be halved.")
      .def("note", &Pace::note, "What a run with so many halvings took, and how much it made.");
  py::class_<SizedPlan, std::shared_ptr<SizedPlan>>(m, "SizedPlan")
      .def(
          py::init([](const py::bytes& bytes,
                      const std::vector<uintptr_t>& addresses,
                      const std::vector<at::Tensor>& constants,
                      std::vector<std::shared_ptr<KernelOwner>> owners) {
            auto found = plan_of(bytes, addresses, constants, std::move(owners));
            const bool any_size = !found.numbers.empty();
            return std::make_shared<SizedPlan>(std::move(found), any_size);
          }),
          py::arg("data"),
          py::arg("addresses"),
          py::arg("constants") = std::vector<at::Tensor>(),
          py::arg("owners") = std::vector<std::shared_ptr<KernelOwner>>());
}

}  // namespace tenon
