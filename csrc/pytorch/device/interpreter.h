// The interpreter's lock, as the core treats it: let go of before a lock of the core's is waited
// for and before anything runs, so that no thread waits for the one while it holds the other.
#pragma once

#include <pybind11/gil_simple.h>

#include <optional>

namespace tenon {

// Lets go of the lock, if this thread holds it, until the end of the scope.
class WithoutInterpreter {
 public:
  WithoutInterpreter() {
    if (Py_IsInitialized() && PyGILState_Check())
      released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release_simple> released_;
};

}  // namespace tenon
