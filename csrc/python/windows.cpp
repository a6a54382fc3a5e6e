#include <pybind11/functional.h>
#include <torch/csrc/Exceptions.h>

#include "device/interpreter.h"
#include "device/interrupts.h"
#include "device/python_line.h"
#include "device/storage.h"
#include "device/target.h"
#include "record/known_calls.h"
#include "record/recorder.h"
#include "record/surroundings.h"
#include "record/values.h"
#include "windows/builder.h"
#include "windows/plan_file.h"
#include "windows/window_plans.h"
#include "windows/window_run.h"

namespace py = pybind11;

namespace tenon {
namespace {

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

void bind_windows(py::module_& m) {
  const auto no_gil = py::call_guard<ReleasedInterpreter>();
  m.def("set_execute_mode", [](int mode) {
    ReleasedInterpreter no_gil;
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
  m.def(
      "put_into",
      [](const at::Tensor& tensor, const at::Tensor& host) {
        ReleasedInterpreter no_gil;
        auto& storage = *tensor.storage().unsafeGetStorageImpl();
        const auto device = tensor.device().index();
        TORCH_CHECK(target().host_memory, "the host does not reach the memory of this target");
        TORCH_CHECK(host.storage().nbytes() == storage.nbytes(), "storages of different sizes");
        commit(check_index(device), CommitReason::request);
        auto by = storage_over(data_ptr_keeping(host.storage()), storage.nbytes(), device);
        replace_memory(storage, std::move(by));
        share_address(storage);
      },
      "A tensor's storage has the memory of a host tensor from now on, with what that holds.");
  m.def("traces_calls", &traces_calls);
  m.def(
      "set_skipped_files",
      &set_skipped_files,
      "A Python line that is told is of none of these files, and in no folder with a slash.");
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
      .def_readonly("sizes", &WindowRuns::sizes, "How many it was for, where they are symbols.")
      .def_readonly(
          "shortest_by_plan",
          &WindowRuns::shortest_by_plan,
          "Where its plan is used no more, as it takes longer than the calls; else 0.")
      .def_readonly("shortest_by_reference", &WindowRuns::shortest_by_reference);
  m.def(
      "window_runs",
      [] {
        {
          ReleasedInterpreter no_gil;
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
      &windows_never_by_plan,
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
          const DeferredInterrupts until_it_is_told;  // it would be lost below
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
  m.def("set_standby", &set_standby, "The socket of a process that becomes the first builder.");
  m.def("end_standby", &end_standby, "Ends that process, where it has not become the builder.");
  m.def("start_builder", &start_builder, "Starts it before it is needed.");
  m.def(
      "set_plan_all",
      &set_plan_all,
      "Whether every window that comes twice gets a plan, or those for which it pays.");
  m.def(
      "ask_for_later",
      &ask_for_later,
      no_gil,
      "Asks for plans that did not pay in this process, and may in others.");
  m.def("builder_state", &builder_state, "How often it was started, and how many plans it owes.");
  m.def("keep_known_calls", &keep_known_calls, no_gil);
  m.def("element_types", &element_types, "Of lists of arguments, by their numbers in files.");
  m.def(
      "checksum",
      [](const py::bytes& bytes) { return checksum(static_cast<std::string_view>(bytes)); },
      "Of a file, as plan files have it.");
  py::class_<WindowPlan, std::shared_ptr<WindowPlan>>(m, "Window")
      .def_readonly("number", &WindowPlan::id)
      .def_readonly("failures", &WindowPlan::failures, "To make its plan, that may pass.")
      .def(
          "structure",
          [](const WindowPlan& window, bool here) {
            const auto structure = here ? structure_here(window) : structure_of(window);
            Writer archive;
            if (!structure.key.empty())
              archive(structure.key, structure.example);
            return py::bytes(archive.bytes);
          },
          py::arg("here") = false,
          "The window as data for another process, or for who reads it in this one; empty where it "
          "cannot be that.")
      .def_static(
          "of_structure", [](const py::bytes& data) { return window_of(read_structure(data)); })
      .def_property_readonly(
          "waits",
          py::cpp_function(&waits_for_plan, no_gil),
          "Whether its plan was asked for, and nothing came of that yet.")
      .def(
          "finish",
          [](WindowPlan& window,
             std::shared_ptr<SizedPlan> plan,
             std::vector<int32_t> inputs,
             std::vector<int32_t> outputs,
             std::string error,
             bool may_pass,
             std::string facts,
             std::string extras,
             const std::string& bytes) {
            ReleasedInterpreter no_gil;
            const bool taken = finish_window(
                window,
                {std::move(plan),
                 std::move(inputs),
                 std::move(outputs),
                 std::move(error),
                 may_pass,
                 std::move(facts),
                 std::move(extras)});
            return !taken || keep(window, bytes);  // else one was kept before
          },
          py::arg("plan") = nullptr,
          py::arg("inputs") = std::vector<int32_t>(),
          py::arg("outputs") = std::vector<int32_t>(),
          py::arg("error") = "",
          py::arg("may_pass") = false,
          py::arg("facts") = "",
          py::arg("extras") = "",
          py::arg("bytes") = "",
          "Brings its plan, with the bytes that it was made of, or the reason why it has none; "
          "with "
          "neither, or a reason that may pass, it may ask again. Gives whether other processes "
          "find "
          "that.")
      .def(
          "find_kept",
          &find_kept,
          no_gil,
          "Whether its plan, or the reason why it has none, was kept.");
  m.def("set_ask_for_plan", &set_ask_for_plan);
  m.def("set_describe_op", &set_describe_op);
  m.def(
      "set_verify",
      [](py::object verify) {
        set_verify([verify = std::move(verify)](
                       const std::shared_ptr<const WindowPlan>& window,
                       const std::vector<int64_t>& numbers,
                       const SlotBytes& bytes,
                       const std::function<void()>& run_plan,
                       const std::function<void()>& run_reference) {
          py::gil_scoped_acquire gil;
          // The queue may be Python's, and another thread's.
          const auto read = [&](size_t slot, size_t nbytes) {
            std::string found(nbytes, '\0');
            {
              const py::gil_scoped_release no_gil;
              bytes.read(slot, found.data(), nbytes);
            }
            return py::bytes(found);
          };
          const auto write = [&](size_t slot, const std::string& data) {
            const py::gil_scoped_release no_gil;
            bytes.write(slot, data.data(), data.size());
          };
          verify(
              std::const_pointer_cast<WindowPlan>(window),
              numbers,
              py::cpp_function(torch::wrap_pybind_function(read)),
              py::cpp_function(torch::wrap_pybind_function(write)),
              without_lock(run_plan),
              without_lock(run_reference));
        });
      },
      "What `verify` calls: with a window, its numbers, what reads and writes its slots, and its "
      "two runs.");
}

}  // namespace tenon
