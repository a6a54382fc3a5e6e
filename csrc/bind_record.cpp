#include "bind_record.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "device/target.h"
#include "record/plans.h"
#include "record/record.h"
#include "record/verify.h"

namespace py = pybind11;

namespace tenon {
namespace {

py::object dtype_object(at::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

py::tuple tensor_facts(int32_t slot, const TensorLayout& t) {
  return py::make_tuple(
      "tensor",
      slot,
      dtype_object(t.dtype),
      py::tuple(py::cast(t.sizes)),
      py::tuple(py::cast(t.strides)),
      t.offset);
}

// A constant as Python code would pass it.
py::object constant(const c10::IValue& value, const c10::TypePtr& type) {
  auto kind = type->kind();
  if (kind == c10::TypeKind::OptionalType)
    kind = type->castRaw<c10::OptionalType>()->getElementType()->kind();
  if (kind == c10::TypeKind::ScalarTypeType && value.isInt())
    return dtype_object(static_cast<at::ScalarType>(value.toInt()));
  if (kind == c10::TypeKind::MemoryFormatType && value.isInt())
    return py::reinterpret_borrow<py::object>(
        torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt())));
  if (kind == c10::TypeKind::LayoutType && value.isInt())
    return py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(value.toInt()))));
  // A Python number reaches an op that takes tensors as a tensor that says so.
  if (value.isTensor() && value.toTensor().defined() &&
      value.toTensor().unsafeGetTensorImpl()->is_wrapped_number())
    return torch::jit::toPyObject(value.toTensor().item());
  if (value.isTensor() && !value.toTensor().defined())
    return py::none();
  return torch::jit::toPyObject(value);
}

class Describer {
 public:
  Describer(const OpEntry& entry, const std::vector<int32_t>& slots, int64_t& next_number)
      : entry_(entry), slots_(slots), next_number_(next_number) {}

  py::tuple describe() {
    const auto& schema = entry_.op->op.schema();
    py::list arguments;
    for (size_t i = 0; i < entry_.arguments.size(); ++i)
      arguments.append(argument(entry_.arguments[i], schema.arguments()[i].real_type()));
    py::list results;
    for (const auto& plan : entry_.results)
      results.append(result(plan));
    return py::make_tuple(entry_.op->name, entry_.id, arguments, results);
  }

 private:
  py::object argument(const ArgumentPlan& plan, const c10::TypePtr& type) {
    switch (plan.kind) {
      case ArgumentPlan::constant:
        return py::make_tuple("constant", constant(plan.value, type));
      case ArgumentPlan::number: {
        const bool is_tensor = plan.value.isTensor();
        const auto dtype = is_tensor ? plan.value.toTensor().scalar_type() : at::kDouble;
        const bool wrapped =
            !is_tensor || plan.value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
        const bool real = !is_tensor || number_kind(plan.value.toTensor()) == kDouble;
        return py::make_tuple("number", next_number_++, dtype_object(dtype), wrapped, real);
      }
      case ArgumentPlan::tensor: {
        const auto k = next_tensor_++;
        return tensor_facts(slots_[k], entry_.tensors[k]);
      }
      case ArgumentPlan::list:
        break;
    }
    py::list elements;
    const auto list = type->cast<c10::ListType>();
    const auto element_type = list != nullptr ? list->getElementType() : type;
    for (const auto& element : plan.elements)
      elements.append(argument(element, element_type));
    return py::make_tuple("list", elements);
  }

  // An argument's place, a tensor, a list of tensors, or None.
  py::object result(const ResultPlan& plan) {
    if (plan.argument >= 0)
      return py::make_tuple("argument", plan.argument);
    if (plan.list) {
      py::list elements;
      for (const auto& element : plan.elements)
        elements.append(result(element));
      return py::make_tuple("list", elements);
    }
    if (!plan.defined)
      return py::none();
    return tensor_facts(slots_[entry_.tensors.size() + next_fresh_++], plan.layout);
  }

  const OpEntry& entry_;
  const std::vector<int32_t>& slots_;
  int64_t& next_number_;
  size_t next_tensor_ = 0, next_fresh_ = 0;
};

py::object describe(const WindowPlan& window) {
  py::list calls, slots;
  int64_t next_number = 0;
  for (size_t k = 0; k < window.calls.size(); ++k)
    calls.append(Describer(*window.calls[k], window.slots_of_calls[k], next_number).describe());
  for (const auto& slot : window.slots)
    slots.append(py::make_tuple(slot.nbytes, slot.fresh, slot.alive, slot.written));
  return py::make_tuple(window.id, calls, slots);
}

}  // namespace

void bind_record(py::module_& m) {
  m.def("set_execute_mode", [](int mode) {
    py::gil_scoped_release no_gil;
    set_execute_mode(static_cast<ExecuteMode>(mode));
  });
  m.def("execute_mode", [] { return static_cast<int>(execute_mode()); });
  m.def("set_open_numbers", &set_open_numbers, "See `run_time_numbers` in ops/manifest.yaml.");
  m.def("commit", [](int index) {
    commit(check_index(static_cast<c10::DeviceIndex>(index)), CommitReason::request);
  });
  m.def("commit_all", [] { commit_all(CommitReason::request); });
  m.def(
      "record_counts",
      [] {
        const auto counts = record_counts();
        return py::make_tuple(
            counts.calls,
            std::vector<int64_t>(std::begin(counts.commits), std::end(counts.commits)));
      },
      "Calls recorded, and windows by reason of commit, in the order of CommitReason.");
  m.def(
      "window_runs",
      [] {
        py::list rows;
        for (const auto& w : window_runs())
          rows.append(py::make_tuple(w.by_plan, w.by_reference, w.error));
        return rows;
      },
      "By number of the window: runs by its plan, by reference, and why it has no plan.");
  m.def(
      "calls_at_once",
      [] {
        py::list rows;
        for (const auto& c : calls_at_once())
          rows.append(py::make_tuple(c.op, c.reason, c.calls));
        return rows;
      },
      "Tuples (op, why it was not recorded, calls).");
  m.def(
      "next_window",
      []() -> py::object {
        std::shared_ptr<const WindowPlan> found;
        {
          py::gil_scoped_release no_gil;
          found = next_window();
        }
        return found == nullptr ? py::none() : describe(*found);
      },
      "Waits for a window that wants a plan; see frontends/eager.py for its form.");
  m.def(
      "finish_window",
      [](int64_t id,
         std::shared_ptr<Plan> plan,
         std::vector<int32_t> inputs,
         std::vector<int32_t> outputs,
         std::string error) {
        finish_window(id, std::move(plan), std::move(inputs), std::move(outputs), std::move(error));
      });
  m.def("stop_building", &stop_building);
  m.def("forget_builder", &forget_builder);
  m.def("set_start_builder", [](py::object start) {
    auto* held = new py::object(std::move(start));
    set_start_builder([held] {
      py::gil_scoped_acquire gil;
      (*held)();
    });
  });
  m.def(
      "set_report_disagreement",
      [](py::object report) {
        auto* held = new py::object(std::move(report));
        set_report_disagreement([held](const Disagreement& d) {
          py::gil_scoped_acquire gil;
          const auto bytes = [](const SlotBytes& slots) {
            py::list found;
            for (const auto& slot : slots)
              found.append(py::bytes(slot));
            return found;
          };
          (*held)(
              describe(d.window),
              d.numbers,
              bytes(d.before),
              bytes(d.by_plan),
              bytes(d.by_reference));
        });
      },
      "What `verify` calls with a window, its numbers, and its slots' bytes: before, by its plan, "
      "by "
      "reference.");
  m.def("plan_counts", [] {
    const auto c = plan_counts();
    return py::dict(
        py::arg("hits") = c.hits,
        py::arg("reference") = c.reference,
        py::arg("structures") = c.structures,
        py::arg("ready") = c.ready,
        py::arg("failed") = c.failed,
        py::arg("waiting") = c.waiting);
  });
}

}  // namespace tenon
