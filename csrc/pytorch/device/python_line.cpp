#include "device/python_line.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <unordered_map>

namespace tenon {
namespace {

namespace py = pybind11;

std::atomic<bool> g_traces{false};

constexpr size_t kMostKnown = 4096;  // code objects

std::string folder_of(const char* module) {
  const auto file = py::module_::import(module).attr("__file__");
  return py::module_::import("os.path").attr("dirname")(file).cast<std::string>() + "/";
}

// The file of a code object; none where it is PyTorch's or this package's.
const std::optional<std::string>& file_of(const py::object& code) {
  static const auto* own =
      new std::array<std::string, 2>{folder_of("torch"), folder_of("torch_tenon")};
  // Under the interpreter's lock. A code object that is known stays, or another one could have its
  // address.
  static auto* known =
      new std::unordered_map<PyObject*, std::pair<py::object, std::optional<std::string>>>();
  if (known->size() >= kMostKnown)
    known->clear();
  auto [found, is_new] = known->try_emplace(code.ptr());
  if (is_new) {
    auto file = code.attr("co_filename").cast<std::string>();
    const bool skipped = std::any_of(
        own->begin(), own->end(), [&](const auto& folder) { return file.rfind(folder, 0) == 0; });
    found->second = {code, skipped ? std::nullopt : std::optional(std::move(file))};
  }
  return found->second.second;
}

}  // namespace

void set_trace_calls(bool on) {
  g_traces = on;
}

bool traces_calls() {
  return g_traces.load(std::memory_order_relaxed);
}

std::string python_line() {
  if (!Py_IsInitialized())
    return {};
  const py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_steal<py::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    if (const auto& file = file_of(code))
      return *file + ":" + std::to_string(PyFrame_GetLineNumber(raw));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return {};
}

}  // namespace tenon
