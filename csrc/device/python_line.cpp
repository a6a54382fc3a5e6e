#include "device/python_line.h"

#include <pybind11/pybind11.h>

#include <atomic>

namespace tenon {
namespace {

namespace py = pybind11;

std::atomic<bool> g_traces{false};

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
  static const auto* torch = new std::string(
      py::module_::import("os.path")
          .attr("dirname")(py::module_::import("torch").attr("__file__"))
          .cast<std::string>() +
      "/");
  auto frame = py::reinterpret_steal<py::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const auto file = code.attr("co_filename").cast<std::string>();
    if (file.rfind(*torch, 0) != 0)
      return file + ":" + std::to_string(PyFrame_GetLineNumber(raw));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return {};
}

}  // namespace tenon
