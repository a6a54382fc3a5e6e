// Python's `Target` (torch_tenon/targets/target.py) as the core's. Calls of its methods take the
// interpreter's lock.

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "bind.h"
#include "device/allocator.h"
#include "device/fork.h"
#include "device/interrupts.h"
#include "device/target.h"
#include "device/tickets.h"

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

class PythonQueue final : public Queue {
 public:
  explicit PythonQueue(py::object queue)
      : runs_calls_(queue.attr("runs_calls").cast<bool>()),
        expects_(py::hasattr(queue, "expect")),
        queue_(std::make_unique<Held>(std::move(queue))) {}

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
    return tickets_.add(std::make_shared<Held>((**queue_).attr("commit")()));
  }

  bool passed(Ticket ticket) override {
    const auto event = tickets_.find(ticket);
    if (!event)
      return true;
    const py::gil_scoped_acquire gil;
    if (!(**event).attr("done")().cast<bool>())
      return false;
    tickets_.pass(ticket, (**event).attr("seconds")().cast<double>());
    return true;
  }

  void wait(Ticket ticket) override {
    const auto event = tickets_.find(ticket);
    if (!event)
      return;
    const py::gil_scoped_acquire gil;
    (**queue_).attr("wait")(**event);
    tickets_.pass(ticket, (**event).attr("seconds")().cast<double>());
  }

  double seconds(Ticket ticket) override {
    wait(ticket);
    return tickets_.seconds(ticket);
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
  std::unique_ptr<Held> queue_;
  Tickets<Held> tickets_;
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
