#include <pybind11/functional.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "device/python_line.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/builder.h"
#include "execute/foreign_ops.h"
#include "execute/never_by_plan.h"
#include "execute/plan_file.h"
#include "execute/plan_log.h"
#include "execute/verified_run.h"
#include "execute/window_plans.h"
#include "record/archive.h"
#include "record/known_calls.h"
#include "record/recorder.h"
#include "record/surroundings.h"

namespace py = pybind11;

namespace tenon {
namespace {

// A constant as Python code would pass it.
py::object constant(const c10::IValue& value, const c10::TypePtr& type) {
  const auto kind = value.isInt() && type->kind() == c10::TypeKind::OptionalType
                        ? type->castRaw<c10::OptionalType>()->getElementType()->kind()
                        : type->kind();
  if (value.isInt() && kind == c10::TypeKind::ScalarTypeType)
    return py::cast(value.toScalarType());
  if (value.isInt() && kind == c10::TypeKind::MemoryFormatType)
    return py::cast(value.toMemoryFormat());
  if (value.isInt() && kind == c10::TypeKind::LayoutType)
    return py::cast(value.toLayout());
  // A Python number reaches an op that takes tensors as a tensor that says so.
  if (value.isTensor() && value.toTensor().defined() &&
      value.toTensor().unsafeGetTensorImpl()->is_wrapped_number())
    return torch::jit::toPyObject(value.toTensor().item());
  if (value.isTensor() && !value.toTensor().defined())
    return py::none();
  return torch::jit::toPyObject(value);
}

// A window as Python sees it: see frontends/eager.py. `index` makes what stands for a size that is
// an expression, of its words.
class Describer {
 public:
  Describer(const WindowPlan& window, py::object index)
      : window_(window), index_(std::move(index)), next_slot_(window.slots_of_calls.begin()) {}

  py::tuple describe() {
    py::list calls, slots;
    for (size_t k = 0; k < window_.calls.size(); ++k) {
      sized_ = window_.claim && window_.sized[k] >= 0;
      next_made_ = next_size_ + std::max(window_.sized[k], 0);
      calls.append(call(*window_.calls[k]));
      next_size_ = next_made_;
    }
    sized_ = window_.claim.has_value();
    for (const auto& slot : window_.slots) {
      const auto nbytes = size_at(next_size_, static_cast<int64_t>(slot.nbytes));
      slots.append(py::make_tuple(nbytes, slot.fresh, slot.alive, slot.written));
    }
    return py::make_tuple(window_.id, calls, slots);
  }

 private:
  // A size that a claim is of has one of its expressions.
  py::object size_at(size_t& place, int64_t example) {
    if (!sized_)
      return py::int_(example);
    const auto& words = window_.claim->numbers.at(place++).words;
    if (words.size() == 2 && words[0] == SizeExpression::constant)
      return py::int_(words[1]);
    return index_(words);
  }
  // As `OpKey::put_size` has it.
  py::object given_size(int64_t example) {
    return example < 2 ? py::int_(example) : size_at(next_size_, example);
  }
  py::object made_size(int64_t example) {
    return size_at(next_made_, example);
  }
  // All of them, or the first alone.
  py::tuple given_sizes(const std::vector<int64_t>& examples, bool differ, bool first = false) {
    py::list all;
    for (size_t k = 0; k < examples.size(); ++k) {
      const bool open = differ || (first && k == 0);
      all.append(open ? given_size(examples[k]) : py::object(py::int_(examples[k])));
    }
    return py::tuple(all);
  }

  py::tuple call(const OpEntry& entry) {
    entry_ = &entry;
    next_tensor_ = entry.tensors.begin();
    next_fresh_ = entry.fresh.begin();
    const auto& schema = entry.op->op.schema();
    py::list arguments, results;
    for (size_t i = 0; i < entry.arguments.size(); ++i) {
      differing_ = entry.op->sizes.arguments[i];
      arguments.append(argument(entry.arguments[i], schema.arguments()[i].real_type()));
    }
    for (const auto& plan : entry.results)
      results.append(result(plan));
    return py::make_tuple(entry.op->name, entry.id, arguments, results);
  }

  py::object argument(const ArgumentPlan& plan, const c10::TypePtr& type) {
    switch (plan.kind) {
      case ArgumentPlan::constant:
        return py::make_tuple(
            "constant",
            differing_ == Differing::kSizes ? size(plan.value) : constant(plan.value, type));
      case ArgumentPlan::number: {
        const bool is_tensor = plan.value.isTensor();
        const auto dtype = is_tensor ? plan.value.toTensor().scalar_type() : at::kDouble;
        const bool wrapped =
            !is_tensor || plan.value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
        const bool real = !is_tensor || number_kind(plan.value.toTensor()) == kDouble;
        return py::make_tuple("number", next_number_++, dtype, wrapped, real);
      }
      case ArgumentPlan::tensor:
        return given_tensor();
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

  // A whole number, a list of them, or nothing.
  py::object size(const c10::IValue& value) {
    if (value.isInt())
      return given_size(value.toInt());
    if (!value.isIntList())
      return torch::jit::toPyObject(value);
    return py::list(given_sizes(value.toIntVector(), true));
  }

  py::tuple given_tensor() {
    const auto number = static_cast<size_t>(next_tensor_ - entry_->tensors.begin());
    const auto& t = *next_tensor_++;
    const auto& resized = entry_->resized;
    if (std::find(resized.begin(), resized.end(), number) != resized.end())
      return made_tensor(t);
    const auto slot = *next_slot_++;
    const bool differ = differing_ == Differing::kSizes;
    const auto sizes = given_sizes(t.sizes, differ, differing_ == Differing::kBatch);
    const auto strides = given_sizes(t.strides, differ);
    const auto offset =
        differing_ == Differing::kNothing ? py::object(py::int_(t.offset)) : given_size(t.offset);
    return py::make_tuple("tensor", slot, t.dtype, sizes, strides, offset);
  }

  py::tuple made_tensor(const TensorLayout& t) {
    py::list sizes, strides;
    for (const auto n : t.sizes)
      sizes.append(made_size(n));
    for (const auto k : t.strides)
      strides.append(made_size(k));
    return py::make_tuple(
        "tensor", *next_slot_++, t.dtype, py::tuple(sizes), py::tuple(strides), t.offset);
  }

  // An argument's place, a tensor, a list of tensors, or None.
  py::object result(const ResultPlan& plan) {
    if (plan.argument >= 0)
      return py::make_tuple("argument", plan.argument);
    py::list elements;
    for (const bool defined : plan.defined)
      elements.append(defined ? py::object(made_tensor(*next_fresh_++)) : py::none());
    return plan.list ? py::object(py::make_tuple("list", elements)) : py::object(elements[0]);
  }

  const WindowPlan& window_;
  const py::object index_;
  std::vector<int32_t>::const_iterator next_slot_;
  std::vector<TensorLayout>::const_iterator next_tensor_, next_fresh_;
  int64_t next_number_ = 0;
  const OpEntry* entry_ = nullptr;        // of the call in work
  size_t next_size_ = 0, next_made_ = 0;  // of the claim's: of what is given, and of what is made
  bool sized_ = false;                    // are those of the call in work among them?
  Differing differing_ = Differing::kNothing;  // of the argument in work
};

// A run of the window for Python to call; it raises what PyTorch raises.
py::cpp_function without_lock(const std::function<void()>& run) {
  return torch::wrap_pybind_function_no_gil([run] { run(); });
}

Structure read_structure(const py::bytes& data) {
  Structure structure;
  Reader archive(static_cast<std::string_view>(data));
  archive(structure.key, structure.example);
  return structure;
}

}  // namespace

void bind_record(py::module_& m) {
  m.def("set_execute_mode", [](int mode) {
    py::gil_scoped_release no_gil;
    set_execute_mode(static_cast<ExecuteMode>(mode));
  });
  m.def("execute_mode", [] { return static_cast<int>(execute_mode()); });
  m.def("commit", [](int index) {
    commit(check_index(static_cast<c10::DeviceIndex>(index)), CommitReason::request);
  });
  m.def("commit_all", [] { commit_all(CommitReason::request); });
  m.def(
      "share_memory",
      [](const at::Tensor& tensor) { share_address(*tensor.storage().unsafeGetStorageImpl()); },
      "From now on whatever uses the tensor's memory runs at once: somebody outside may look.");
  m.def("traces_calls", &traces_calls);
  m.def("set_trace_calls", &set_trace_calls, "Whether calls note the Python line they are from.");
  m.def(
      "known_call_counts",
      [] {
        const auto counts = known_call_counts();
        return std::make_tuple(counts.known, most_known_calls(), counts.learned, counts.evicted);
      },
      "What the op cache knows: calls, the most of one op, how many were learned and let go of.");
  m.def("set_most_known_calls", &set_most_known_calls, "The most calls that are known of one op.");
  m.def(
      "record_counts",
      &record_counts,
      "Calls recorded, and windows by reason of commit, in the order of CommitReason.");
  m.def(
      "recorder_count",
      &recorder_count,
      "Of threads that record, and of those that ended and left calls to be run.");
  py::class_<WindowRuns>(
      m, "WindowRuns", "What became of a window's structure; all times are in seconds.")
      .def_readonly("number", &WindowRuns::number, "-1: of all structures that went, together.")
      .def_readonly("name", &WindowRuns::name, "Its calls in a few words.")
      .def_readonly("by_plan", &WindowRuns::by_plan)
      .def_readonly("by_reference", &WindowRuns::by_reference)
      .def_readonly("state", &WindowRuns::state)
      .def_readonly("error", &WindowRuns::error, "Why it has no plan.")
      .def_property_readonly(
          "facts",
          [](const WindowRuns& w) { return py::bytes(w.facts); },
          "What is known of its plan (compiler/explain.py).")
      .def_readonly("time_by_plan", &WindowRuns::time_by_plan)
      .def_readonly("time_by_reference", &WindowRuns::time_by_reference)
      .def_readonly("saving", &WindowRuns::saving, "What a plan might have saved so far.")
      .def_readonly("price", &WindowRuns::price, "... and at which it is asked for.")
      .def_readonly("asked_for", &WindowRuns::asked_for, "How long ago; 0 where nobody makes it.")
      .def_readonly("sizes", &WindowRuns::sizes, "How many it was for, where they are symbols.");
  m.def(
      "window_runs",
      [] {
        {
          py::gil_scoped_release no_gil;
          hear_builder();
        }
        return window_runs();
      },
      "By number of the window.");
  m.def(
      "set_most_structures",
      &set_most_structures,
      "How many structures of windows are kept in memory, with their plans.");
  m.def(
      "structure_counts",
      &structure_counts,
      "How many there are, may be, and how often one was found, added, and went.");
  m.def(
      "windows_never_by_plan",
      [] {
        py::dict found;
        const auto counts = windows_never_by_plan();
        for (size_t k = 0; k < counts.size(); ++k)
          found[py::str(kNeverByPlan[k].data())] = counts[k];
        return found;
      },
      "Windows that no plan may run so far, by why.");
  m.def(
      "first_runs",
      &first_runs,
      "When the first window ran, and the first one by a plan: seconds on one clock, 0 for not "
      "yet.");
  m.def("set_logs_plans", &set_logs_plans, "Whether what becomes of windows is written to stderr.");
  m.def(
      "set_plan_directory",
      &set_plan_directory,
      "Where plans are kept, and what all that is there depends on.");
  m.def(
      "set_before_recording",
      [](py::function tell) {
        auto* kept = new py::function(std::move(tell));  // for good
        set_before_recording([kept] {
          const py::gil_scoped_acquire gil;
          try {
            (*kept)();
          } catch (py::error_already_set& error) {
            error.discard_as_unraisable("where plans are kept");
          }
        });
      },
      "What is called once, before the first call is recorded.");
  m.def("read_known_calls", &read_known_calls, "Unless that is done.");
  m.def(
      "set_known_calls",
      &set_known_calls,
      "The file of what is known of calls, and what all that is there depends on.");
  m.def(
      "set_builder",
      &set_builder,
      py::arg("socket"),
      py::arg("command"),
      py::arg("patience") = 120.0,
      "The socket where the builder process listens, the command that starts it, and the seconds "
      "without a sign of life after which it is asked no more.");
  m.def("start_builder", &start_builder, "Starts it before it is needed.");
  m.def(
      "set_plan_all",
      &set_plan_all,
      "Whether every window that comes twice gets a plan, or those for which it pays.");
  m.def("builder_state", &builder_state, "How often it was started, and how many plans it owes.");
  m.def("keep_known_calls", [] {
    py::gil_scoped_release no_gil;
    return keep_known_calls();
  });
  m.def(
      "checksum",
      [](const py::bytes& bytes) { return checksum(static_cast<std::string_view>(bytes)); },
      "Of a file, as plan files have it.");
  py::class_<WindowPlan, std::shared_ptr<WindowPlan>>(m, "Window")
      .def_readonly("number", &WindowPlan::id)
      .def_property_readonly(
          "default_dtype",
          [](const WindowPlan& window) {
            const auto dtype = default_dtype(window.calls.front()->surroundings());
            return c10::str("torch.", c10::getDtypeNames(dtype).first);
          },
          "Under which its calls were made, as Python prints it.")
      .def(
          "describe",
          [](const WindowPlan& window, py::object index) {
            return Describer(window, std::move(index)).describe();
          },
          py::arg("index"),
          "Its calls and slots: see frontends/eager.py for their form. `index` makes what stands "
          "for "
          "a size of any value, of the words of its expression (csrc/record/sizes.h).")
      .def_property_readonly(
          "symbols",
          [](const WindowPlan& window) {
            std::vector<int64_t> examples;
            for (size_t k = 0; window.claim && k < window.claim->symbols.size(); ++k)
              examples.push_back(window.claim->seen.at(window.claim->symbols[k]));
            return examples;
          },
          "An example for each of the sizes that may have any value from 2 on.")
      .def_property_readonly(
          "calls", [](const WindowPlan& window) { return window.calls.size(); }, "How many.")
      .def_readonly("threads", &WindowPlan::threads, "That loops are shared between.")
      .def_readonly("failures", &WindowPlan::failures, "To make its plan, that may pass.")
      .def(
          "structure",
          [](const WindowPlan& window) {
            const auto structure = structure_of(window);
            Writer archive;
            if (!structure.key.empty())
              archive(structure.key, structure.example);
            return py::bytes(archive.bytes);
          },
          "The window as data for another process; empty where it cannot be that.")
      .def_static(
          "of_structure", [](const py::bytes& data) { return window_of(read_structure(data)); })
      .def_static(
          "foreign_ops_of",
          [](const py::bytes& data) { return foreign_ops_of(read_structure(data)); },
          "What `set_describe_op` gave for the ops of a structure that PyTorch does not have.")
      .def_property_readonly(
          "waits",
          [](const WindowPlan& window) {
            py::gil_scoped_release no_gil;
            return waits_for_plan(window);
          },
          "Whether its plan was asked for, and nothing came of that yet.")
      .def(
          "finish",
          [](WindowPlan& window,
             std::shared_ptr<Plan> plan,
             std::shared_ptr<SizedPlan> sized,
             std::vector<int32_t> inputs,
             std::vector<int32_t> outputs,
             std::string error,
             bool may_pass,
             std::string facts,
             std::string extras) {
            py::gil_scoped_release no_gil;
            finish_window(
                window,
                {std::move(plan),
                 std::move(sized),
                 std::move(inputs),
                 std::move(outputs),
                 std::move(error),
                 may_pass,
                 std::move(facts),
                 std::move(extras)});
            return keep(window);
          },
          py::arg("plan") = nullptr,
          py::arg("sized") = nullptr,
          py::arg("inputs") = std::vector<int32_t>(),
          py::arg("outputs") = std::vector<int32_t>(),
          py::arg("error") = "",
          py::arg("may_pass") = false,
          py::arg("facts") = "",
          py::arg("extras") = "",
          "Brings its plan, or the reason why it has none; with neither, or a reason that may "
          "pass, "
          "it may ask again. Gives whether other processes find that.")
      .def(
          "find_kept",
          [](WindowPlan& window) {
            py::gil_scoped_release no_gil;
            return find_kept(window);
          },
          "Whether its plan, or the reason why it has none, was kept.");
  m.def("set_ask_for_plan", &set_ask_for_plan);
  m.def("set_describe_op", &set_describe_op);
  m.def(
      "set_verify",
      [](py::object verify) {
        set_verify([verify = std::move(verify)](
                       const WindowPlan& window,
                       const std::vector<int64_t>& numbers,
                       const std::vector<uintptr_t>& blocks,
                       const std::function<void()>& run_plan,
                       const std::function<void()>& run_reference) {
          py::gil_scoped_acquire gil;
          verify(
              Describer(window, py::none()).describe(),
              numbers,
              blocks,
              without_lock(run_plan),
              without_lock(run_reference));
        });
      },
      "What `verify` calls with a window, its numbers, its slots' addresses and its two runs.");
}

}  // namespace tenon
