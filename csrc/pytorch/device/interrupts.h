// What Python's signal handlers raise, a KeyboardInterrupt for one, while the core is in Python.
//
// Python runs them on its main thread, wherever that is in Python code: in a method of a target's
// too, of which one half would be done and the window lost.
#pragma once

namespace tenon {

// Once, with the interpreter's lock.
void find_main_thread();
// In the child of a fork, with the interpreter's lock: handlers are back in their places, if
// another thread than the one that forked had deferred signals.
void restore_handlers_after_fork();

// While one lives on Python's main thread, signals wait; on any other thread, and within another
// one, it does nothing. Then the handlers run as if the signals had just come. Where one has run
// meanwhile, what it raised is raised in the Python code that comes next. The interpreter's lock
// may be held or not.
class DeferredInterrupts {
 public:
  DeferredInterrupts();
  ~DeferredInterrupts();
  DeferredInterrupts(const DeferredInterrupts&) = delete;
  DeferredInterrupts& operator=(const DeferredInterrupts&) = delete;

 private:
  bool counted_ = false;
};

// Whether this is Python's main thread and no signal waits, so that handlers may run now. Asked
// without the interpreter's lock.
bool signals_come_here();
// Runs the handlers of signals that have come, and raises what they raise.
void run_signal_handlers();

}  // namespace tenon
