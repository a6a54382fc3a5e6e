// The log of what the device did, for torch_tenon/reports/profiler/log.py.

#include "device/profile.h"
#include "device/interpreter.h"
#include "device/pending.h"
#include "python/registration.h"

namespace py = pybind11;

namespace tenon {
namespace {

std::vector<std::string> commit_reasons() {
  std::vector<std::string> names;
  for (int k = 0; k < static_cast<int>(CommitReason::count_); ++k)
    names.emplace_back(name_of(static_cast<CommitReason>(k)));
  return names;
}

const RegisterBindings profile_bindings([](py::module_& m) {
  const auto no_gil = py::call_guard<ReleasedInterpreter>();
  py::class_<ProfileLog>(m, "ProfileLog", "Events of the device, from its making on.")
      .def(py::init<size_t>(), py::arg("most"), no_gil)
      .def("stop", &ProfileLog::stop, no_gil)
      .def_property_readonly("lost", &ProfileLog::lost, "Events that came after the most.")
      .def(
          "take",
          [](ProfileLog& log, bool all) {
            std::string events;
            {
              const ReleasedInterpreter released;
              events = log.take(all);
            }
            return py::bytes(events);
          },
          py::arg("all") = true,
          "What is there, which it then has no more; with `all` waits for asynchronous devices.");
  m.def(
      "subjects_from",
      [](uint32_t first) {
        py::list found;
        for (const auto& x : subjects_from(first))
          found.append(py::make_tuple(x.name, x.detail, x.calls, x.bytes, x.operations));
        return found;
      },
      "What events are of, by number: name, sizes and dtypes, calls, bytes, operations.");
  m.def("commit_reasons", &commit_reasons, "Why windows end, in the order of CommitReason.");
});

}  // namespace
}  // namespace tenon
