#include "device/python_line.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <string_view>

namespace tenon {
namespace {

namespace py = pybind11;

std::atomic<bool> g_traces{false};

// By the interpreter's lock. Leaked on purpose, as the target is.
std::vector<std::string>& skipped() {
  static auto* paths = new std::vector<std::string>();
  return *paths;
}

bool is_skipped(std::string_view file) {
  return std::ranges::any_of(skipped(), [&](const auto& path) { return file.starts_with(path); });
}

}  // namespace

void set_trace_calls(bool on) {
  g_traces = on;
}

void set_skipped_files(std::vector<std::string> paths) {
  skipped() = std::move(paths);
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
    auto file = code.attr("co_filename").cast<std::string>();
    if (!is_skipped(file))
      return file + ":" + std::to_string(PyFrame_GetLineNumber(raw));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return {};
}

}  // namespace tenon
