// Python's `Target` (torch_tenon/targets/target.py) as the core's. Calls of its methods take the
// interpreter's lock.

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "bind.h"
#include "device/allocator.h"
#include "device/fork.h"
#include "device/interrupts.h"
#include "device/target.h"

namespace py = pybind11;

namespace tenon {
namespace {

// Objects of Python's that threads of the core hold.
class Held {
 public:
  explicit Held(py::object object) : object_(std::move(object)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }
  const py::object& operator*() const {
    return object_;
  }

 private:
  py::object object_;
};

// An event of Python's. What the device failed with is raised by `wait`, or by `done`, each time
// that they are asked: what is raised once came from a signal's handler.
class PythonCommit final : public Commit {
 public:
  PythonCommit(std::shared_ptr<Held> queue, py::object event)
      : queue_(std::move(queue)), event_(std::move(event)) {}

  bool passed() override {
    if (over_)
      return true;
    const py::gil_scoped_acquire gil;
    return is_done() && end();
  }

  void wait() override {
    if (over_)
      return;
    const py::gil_scoped_acquire gil;
    try {
      (**queue_).attr("wait")(*event_);
      is_done();  // a device may tell of its fault there alone
      over_ = true;
    } catch (py::error_already_set&) {
      if (is_done())
        end();
      if (!failure_)
        throw;
    }
  }

  double seconds() override {
    const py::gil_scoped_acquire gil;
    return (*event_).attr("seconds")().cast<double>();
  }

  std::shared_ptr<Failure> failure() override {
    return over_ ? failure_ : nullptr;
  }

 private:
  // With the interpreter's lock, as what follows.
  bool is_done() {
    const auto done = [&] { return (*event_).attr("done")().cast<bool>(); };
    try {
      return done();
    } catch (py::error_already_set&) {
      try {
        done();
      } catch (py::error_already_set&) {
        fail();
        return true;
      }
      throw;
    }
  }

  // It is done: `wait` tells whether well.
  bool end() {
    const auto wait = [&] { (**queue_).attr("wait")(*event_); };
    if (over_)
      return true;
    try {
      wait();
    } catch (py::error_already_set&) {
      try {
        wait();
      } catch (py::error_already_set&) {
        fail();
        return true;
      }
      over_ = true;
      throw;
    }
    over_ = true;
    return true;
  }

  // With what is being handled. Another thread may have found the same.
  void fail() {
    auto failure = Failure::current("");
    if (!over_)
      failure_ = std::move(failure);
    over_ = true;
  }

  const std::shared_ptr<Held> queue_;
  const Held event_;
  std::shared_ptr<Failure> failure_;  // once it is over nothing changes
  std::atomic<bool> over_{false};
};

class PythonQueue final : public Queue {
 public:
  explicit PythonQueue(py::object queue)
      : runs_calls_(queue.attr("runs_calls").cast<bool>()),
        expects_(py::hasattr(queue, "expect")),
        queue_(std::make_shared<Held>(std::move(queue))) {}

  void copy(void* dst, const void* src, size_t nbytes, CopyKind kind) override {
    const auto end = [](const void* ptr, bool host) -> py::object {
      return host ? py::int_(reinterpret_cast<uintptr_t>(ptr)) : place(ptr);
    };
    const py::gil_scoped_acquire gil;
    (**queue_).attr("copy")(
        end(dst, kind == CopyKind::device_to_host),
        end(src, kind == CopyKind::host_to_device),
        nbytes);
  }

  void launch(
      KernelFunction kernel,
      c10::ArrayRef<void*> pointers,
      c10::ArrayRef<int64_t> numbers,
      int64_t* status) override {
    const py::gil_scoped_acquire gil;
    (**queue_).attr("launch")(
        reinterpret_cast<uintptr_t>(kernel),
        places(pointers),
        numbers.vec(),
        reinterpret_cast<uintptr_t>(status));
  }

  void expect(Next next) override {
    if (!expects_)
      return;
    const py::gil_scoped_acquire gil;
    (**queue_).attr("expect")(static_cast<int>(next));
  }

  bool runs_calls() const override {
    return runs_calls_;
  }

  void call(
      std::function<void(c10::ArrayRef<void*>)> work, c10::ArrayRef<void*> pointers) override {
    const py::gil_scoped_acquire gil;
    const auto run = py::cpp_function([work](const std::vector<uintptr_t>& addresses) {
      std::vector<void*> memory;
      for (const auto address : addresses)
        memory.push_back(reinterpret_cast<void*>(address));
      const py::gil_scoped_release no_gil;
      work(memory);
    });
    (**queue_).attr("call")(run, places(pointers));
  }

  Ticket commit() override {
    const py::gil_scoped_acquire gil;
    return std::make_shared<PythonCommit>(queue_, (**queue_).attr("commit")());
  }

 private:
  static py::object place(const void* ptr) {
    if (ptr == nullptr)
      return py::none();
    const auto [handle, offset] = device_allocator().place_of(ptr);
    return py::make_tuple(handle, offset);
  }

  static py::list places(c10::ArrayRef<void*> pointers) {
    py::list found;
    for (const auto* ptr : pointers)
      found.append(place(ptr));
    return found;
  }

  const bool runs_calls_;
  const bool expects_;
  const std::shared_ptr<Held> queue_;
};

std::unique_ptr<Queue> bind_queue(py::object queue) {
  if (py::isinstance<NativeQueue>(queue))
    return std::move(queue.cast<NativeQueue&>().queue);
  return std::make_unique<PythonQueue>(std::move(queue));
}

Target bind_target(const py::object& object) {
  Target t;
  t.name = object.attr("name").cast<std::string>();
  t.host_memory = object.attr("host_memory").cast<bool>();
  const py::object backend = object.attr("backend");
  t.runs_plans = !backend.is_none();
  t.runs_attention = t.runs_plans && backend.attr("library").contains(py::str("tenon::attention"));
  t.device_count = object.attr("devices")().cast<c10::DeviceIndex>();
  t.allocate = [allocate = object.attr("allocate").cast<decltype(t.allocate)>()](
                   size_t nbytes, c10::DeviceIndex device) {
    const DeferredInterrupts until_its_memory_is_noted;
    return allocate(nbytes, device);
  };
  t.free = [free = object.attr("free").cast<decltype(t.free)>()](
               uintptr_t handle, c10::DeviceIndex device) {
    const DeferredInterrupts until_it_is_free;
    free(handle, device);
  };
  for (int i = 0; i < t.device_count; ++i) {
    t.total_memory.push_back(object.attr("total_memory")(i).cast<size_t>());
    if (t.host_memory)
      t.queues.push_back(host_queue());
    else
      t.queues.push_back(bind_queue(object.attr("queue")(i)));
  }
  return t;
}

const RegisterBindings bindings([](py::module_& m) {
  py::class_<NativeQueue>(m, "NativeQueue");
  m.def("set_target", [](const py::object& target) {
    set_target(bind_target(target));
    find_main_thread();
  });
  m.def("restore_handlers_after_fork", &restore_handlers_after_fork);
  m.def("survives_fork", &survives_fork, "Would a child that is forked now have the device?");
});

}  // namespace
}  // namespace tenon
