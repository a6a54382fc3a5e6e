#include "device/python_line.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

namespace tenon {
namespace {

namespace py = pybind11;

std::atomic<bool> g_traces{false};

std::string folder_of(const char* module) {
  const auto file = py::module_::import(module).attr("__file__");
  return py::module_::import("os.path").attr("dirname")(file).cast<std::string>() + "/";
}

// By the interpreter's lock. Leaked on purpose, as the target is.
std::vector<std::string>& target_files() {
  static auto* files = new std::vector<std::string>();
  return *files;
}

// Is it PyTorch's file, this package's or the target's?
bool is_skipped(std::string_view file) {
  static const auto* own =
      new std::array<std::string, 2>{folder_of("torch"), folder_of("torch_tenon")};
  return std::ranges::any_of(*own, [&](const auto& folder) { return file.starts_with(folder); }) ||
         std::ranges::count(target_files(), file) > 0;
}

}  // namespace

void set_trace_calls(bool on) {
  g_traces = on;
}

void set_target_files(std::vector<std::string> files) {
  target_files() = std::move(files);
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
