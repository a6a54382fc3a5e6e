// Python's global lock, for the time of work that needs none of Python.
#pragma once

#include <Python.h>

namespace tenon {

// Lets go of the interpreter's lock, if this thread holds it, until the end of the scope.
class WithoutInterpreterLock {
 public:
  WithoutInterpreterLock()
      : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutInterpreterLock() {
    if (saved_ != nullptr)
      PyEval_RestoreThread(saved_);
  }
  WithoutInterpreterLock(const WithoutInterpreterLock&) = delete;
  WithoutInterpreterLock& operator=(const WithoutInterpreterLock&) = delete;

 private:
  PyThreadState* saved_;
};

}  // namespace tenon
