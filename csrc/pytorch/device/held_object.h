// Python objects that threads of the core have.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace tenon {

// For who may let go of it on any thread, with the interpreter's lock or without. Where the
// interpreter is gone by then, so is the object's memory, and it is left as it is.
inline std::shared_ptr<const pybind11::object> held(pybind11::object object) {
  const auto let_go = [](const pybind11::object* kept) {
    if (!Py_IsInitialized())
      return;
    const pybind11::gil_scoped_acquire gil;
    delete kept;
  };
  return {new pybind11::object(std::move(object)), let_go};
}

}  // namespace tenon
