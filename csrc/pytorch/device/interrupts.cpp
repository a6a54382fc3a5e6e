#include "device/interrupts.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <csignal>
#include <deque>
#include <vector>

namespace tenon {
namespace {

namespace py = pybind11;

constexpr int kMostSignalTries = 16;  // of a signal whose handlers keep raising

// A handler of Python's that `note` stands in for.
struct Replaced {
  int signal;
  py::object handler;
  struct sigaction action;  // the system's side, with its flags
};

// By the interpreter's lock, but `depth`, which is the main thread's own.
struct Interrupts {
  // Whose signals wait.
  std::atomic<pthread_t> main_thread{};
  int depth = 0;
  py::object get, set, note;  // what gets and sets a handler, and a handler
  std::array<py::int_, NSIG> numbers;
  std::vector<Replaced> replaced;
  std::array<bool, NSIG> noted{};
  std::deque<py::error_already_set> raised;  // by handlers that ran when they should not

  Interrupts() {
    const auto signals = py::module_::import("_signal");  // without its Python: that may be traced
    get = signals.attr("getsignal");
    set = signals.attr("signal");
    note = py::cpp_function([this](int signal, const py::object&) { noted.at(signal) = true; });
    for (int signal = 0; signal < NSIG; ++signal)
      numbers[signal] = py::int_(signal);
    const auto main = py::module_::import("threading").attr("main_thread")();
    main_thread = static_cast<pthread_t>(main.attr("ident").cast<unsigned long>());
  }
};

// Leaked on purpose: it holds objects of Python's.
std::atomic<Interrupts*> g_state{nullptr};

// The thread that forks is the child's main thread.
void note_child() {
  auto& s = *g_state.load();
  if (s.main_thread.exchange(pthread_self()) != pthread_self())
    s.depth = 0;
}

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Python runs what is pending before it sets a handler, and what that raises keeps it from doing
// so.
bool set_handler(Interrupts& s, int signal, const py::object& handler) {
  for (int k = 0; k < kMostSignalTries; ++k) {
    try {
      s.set(signal, handler);
      return true;
    } catch (py::error_already_set& error) {
      s.raised.push_back(error);
    }
  }
  return false;
}

void replace_handlers(Interrupts& s) {
  for (int signal = 1; signal < NSIG; ++signal) {
    auto handler = py::object(s.get(s.numbers[signal]));
    if (PyCallable_Check(handler.ptr()) == 0)
      continue;
    struct sigaction action;
    sigaction(signal, nullptr, &action);
    if (set_handler(s, signal, s.note))
      s.replaced.push_back({signal, std::move(handler), action});
  }
}

// Called by the interpreter, in the main thread's Python code.
int raise_deferred(void* /*unused*/) {
  auto& s = *g_state.load();
  if (s.depth > 0 || s.raised.empty())
    return 0;
  auto error = std::move(s.raised.front());
  s.raised.pop_front();
  if (!s.raised.empty())
    Py_AddPendingCall(&raise_deferred, nullptr);
  error.restore();
  return -1;
}

void restore_handlers(Interrupts& s) {
  for (const auto& [signal, handler, action] : s.replaced) {
    if (!s.get(signal).is(s.note))  // it was set meanwhile
      continue;
    set_handler(s, signal, handler);
    sigaction(signal, &action, nullptr);
  }
  s.replaced.clear();
}

// Nothing is in the way of the signals that came.
void deliver(Interrupts& s) {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (std::exchange(s.noted[signal], false))
      PyErr_SetInterruptEx(signal);
  }
  if (!s.raised.empty())
    Py_AddPendingCall(&raise_deferred, nullptr);
}

}  // namespace

void find_main_thread() {
  g_state = new Interrupts();
  pthread_atfork(nullptr, nullptr, &note_child);
}

void restore_handlers_after_fork() {
  auto& s = *g_state.load();
  if (s.depth == 0)
    restore_handlers(s);
}

bool signals_come_here() {
  const auto* s = g_state.load();
  return s != nullptr && s->main_thread == pthread_self() && s->depth == 0 && Py_IsInitialized() &&
         !is_finalizing();
}

void run_signal_handlers() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0)
    throw py::error_already_set();
}

DeferredInterrupts::DeferredInterrupts() {
  auto* s = g_state.load();
  if (s == nullptr || s->main_thread != pthread_self() || !Py_IsInitialized() || is_finalizing())
    return;
  counted_ = true;
  if (s->depth++ > 0)
    return;
  const py::gil_scoped_acquire gil;
  const py::error_scope error_so_far;
  replace_handlers(*s);
}

DeferredInterrupts::~DeferredInterrupts() {
  if (!counted_)
    return;
  auto& s = *g_state.load();
  if (s.depth > 1) {
    --s.depth;
    return;
  }
  const py::gil_scoped_acquire gil;
  const py::error_scope error_so_far;
  restore_handlers(s);
  --s.depth;
  deliver(s);
}

}  // namespace tenon
