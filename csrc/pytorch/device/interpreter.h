// The interpreter's lock, as the core treats it: a thread lets go of it before it waits for a lock
// of the core's, and before anything runs. So no thread waits for the one while it holds the other.
//
// Where a program is over, the interpreter ends a thread that wants the lock back. It unwinds the
// thread's stack, and a destructor lets that through only if it says that it may throw.
#pragma once

#include <Python.h>

namespace tenon {

// Lets go of the lock, which this thread holds, until the end of the scope.
class ReleasedInterpreter {
 public:
  ReleasedInterpreter() : state_(PyEval_SaveThread()) {}
  ~ReleasedInterpreter() noexcept(false) {
    PyEval_RestoreThread(state_);
  }
  ReleasedInterpreter(const ReleasedInterpreter&) = delete;
  ReleasedInterpreter& operator=(const ReleasedInterpreter&) = delete;

 private:
  PyThreadState* state_;
};

// The same, if this thread holds it.
class WithoutInterpreter {
 public:
  WithoutInterpreter()
      : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutInterpreter() noexcept(false) {
    if (state_ != nullptr)
      PyEval_RestoreThread(state_);
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace tenon
