// The log of what the device did, for torch_tenon/reports/profiler/log.py.

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "device/interpreter.h"
#include "device/pending.h"
#include "device/profile.h"
#include "execute/ceilings.h"
#include "python/registration.h"

namespace py = pybind11;

namespace tenon {
namespace {

struct Shared {
  Ceilings found;
  std::function<Ceilings()> measure;
};

// Leaked on purpose: what Python gave is let go of by nobody.
Shared& shared() {
  static auto* instance = new Shared();
  return *instance;
}

py::bytes bytes_of(const std::deque<ProfileEvent>& events) {
  std::string bytes;
  bytes.reserve(events.size() * sizeof(ProfileEvent));
  for (const auto& event : events)
    bytes.append(reinterpret_cast<const char*>(&event), sizeof(event));
  return bytes;
}

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
            std::deque<ProfileEvent> events;
            {
              const ReleasedInterpreter released;
              events = log.take(all);
            }
            return bytes_of(events);
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
  m.def(
      "set_measure_ceilings",
      [](py::function measure) {
        auto* kept = new py::function(std::move(measure));  // for good
        set_measure_ceilings([kept] {
          const py::gil_scoped_acquire gil;
          try {
            const auto found = (*kept)().cast<std::pair<double, double>>();
            return Ceilings{found.first, found.second};
          } catch (py::error_already_set& error) {
            error.discard_as_unraisable("what this machine can do is measured");
            return Ceilings{};
          }
        });
      },
      "What gives the bytes and the operations of a second.");
});

}  // namespace

const Ceilings& ceilings() {
  return shared().found;
}

void measure_ceilings() {
  if (shared().found.bytes == 0 && shared().measure)
    shared().found = shared().measure();
}

void set_measure_ceilings(std::function<Ceilings()> measure) {
  shared().measure = std::move(measure);
}

}  // namespace tenon
