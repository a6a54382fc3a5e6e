// Python's `Target` (torch_tenon/targets/target.py) as the core's. Calls of its methods take the
// interpreter's lock.

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "device/allocator.h"
#include "device/fork.h"
#include "device/held_object.h"
#include "device/interpreter.h"
#include "device/interrupts.h"
#include "device/target.h"
#include "python/registration.h"
#include "runtime/archive.h"
#include "runtime/several_queues.h"
#include "runtime/target_library.h"
#include "windows/plan_file.h"

namespace py = pybind11;

namespace tenon {
namespace {

// An event of Python's. What the device failed with is raised by `wait`, or by `done`, each time
// that they are asked: what is raised once came from a signal's handler.
class PythonCommit final : public Commit {
 public:
  PythonCommit(std::shared_ptr<const py::object> queue, py::object event)
      : queue_(std::move(queue)), event_(held(std::move(event))) {}

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
      queue_->attr("wait")(*event_);
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
    return event_->attr("seconds")().cast<double>();
  }

  std::optional<double> started() override {
    const py::gil_scoped_acquire gil;
    if (!py::hasattr(*event_, "started"))
      return std::nullopt;
    return event_->attr("started")().cast<double>();
  }

  std::shared_ptr<Failure> failure() override {
    return over_ ? failure_ : nullptr;
  }

  const py::object& event() const {
    return *event_;
  }

 private:
  // With the interpreter's lock, as what follows.
  bool is_done() {
    const auto done = [&] { return event_->attr("done")().cast<bool>(); };
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
    const auto wait = [&] { queue_->attr("wait")(*event_); };
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

  const std::shared_ptr<const py::object> queue_;
  const std::shared_ptr<const py::object> event_;
  std::shared_ptr<Failure> failure_;  // once it is over nothing changes
  std::atomic<bool> over_{false};
};

class PythonQueue final : public Queue {
 public:
  // One for copies runs nothing.
  explicit PythonQueue(py::object queue, bool for_copies = false)
      : runs_calls_(!for_copies && queue.attr("runs_calls").cast<bool>()),
        copies_from_devices_(!for_copies && py::hasattr(queue, "copy_from")),
        record_(held(py::module_::import("torch_tenon.targets.target").attr("Launch"))),
        queue_(held(std::move(queue))) {}

  void copy(void* dst, const void* src, size_t nbytes, CopyKind kind) override {
    const auto end = [](const void* ptr, bool host) -> py::object {
      return host ? py::int_(reinterpret_cast<uintptr_t>(ptr)) : place(ptr);
    };
    const py::gil_scoped_acquire gil;
    queue_->attr("copy")(
        end(dst, kind == CopyKind::device_to_host),
        end(src, kind == CopyKind::host_to_device),
        nbytes);
  }

  bool copies_from_devices() const override {
    return copies_from_devices_;
  }

  void copy_from(void* dst, const void* src, int device, size_t nbytes) override {
    const py::gil_scoped_acquire gil;
    queue_->attr("copy_from")(place(dst), place(src), device, nbytes);
  }

  void launch(const Launch& launch) override {
    const py::gil_scoped_acquire gil;
    queue_->attr("launch")((*record_)(
        reinterpret_cast<uintptr_t>(launch.kernel),
        places(launch.pointers),
        numbers(launch.numbers),
        reinterpret_cast<uintptr_t>(launch.status.data()),
        launch.status.size(),
        numbers(launch.nbytes),
        numbers(launch.grid),
        numbers(launch.group),
        launch.scratch,
        static_cast<int>(launch.next)));
  }

  bool runs_calls() const override {
    return runs_calls_;
  }

  void call(Work work, std::span<void* const> pointers, std::span<const size_t>) override {
    const py::gil_scoped_acquire gil;
    const auto run = py::cpp_function([work](const std::vector<uintptr_t>& addresses) {
      std::vector<void*> memory;
      for (const auto address : addresses)
        memory.push_back(reinterpret_cast<void*>(address));
      const ReleasedInterpreter no_gil;
      work(memory);
    });
    queue_->attr("call")(run, places(pointers));
  }

  void after(const Ticket& ticket) override {
    const py::gil_scoped_acquire gil;
    queue_->attr("after")(static_cast<PythonCommit&>(*ticket).event());
  }

 private:
  Ticket start() override {
    const py::gil_scoped_acquire gil;
    return std::make_shared<PythonCommit>(queue_, queue_->attr("commit")());
  }

  static py::object place(const void* ptr) {
    if (ptr == nullptr)
      return py::none();
    const auto [handle, offset] = device_allocator().place_of(ptr);
    return py::make_tuple(handle, offset);
  }

  static py::list places(std::span<void* const> pointers) {
    py::list found;
    for (const auto* ptr : pointers)
      found.append(place(ptr));
    return found;
  }

  template <class Number>
  static py::list numbers(std::span<const Number> all) {
    py::list found;
    for (const auto number : all)
      found.append(number);
    return found;
  }

  const bool runs_calls_, copies_from_devices_;
  const std::shared_ptr<const py::object> record_;  // the class of launches
  const std::shared_ptr<const py::object> queue_;
};

// A device's queue, or its queues as one.
std::unique_ptr<Queue> python_queue(const py::object& target, int device) {
  std::unique_ptr<Queue> kernels = std::make_unique<PythonQueue>(target.attr("queue")(device));
  std::vector<std::unique_ptr<Queue>> copies;
  for (const auto& queue : target.attr("copy_queues")(device))
    copies.push_back(
        std::make_unique<PythonQueue>(
            py::reinterpret_borrow<py::object>(queue), /*for_copies=*/true));
  return copies.empty() ? std::move(kernels)
                        : several_queues(std::move(kernels), std::move(copies));
}

// Memory and queues of a library (include/tenon.h), without Python.
void give_library(Target& t, const std::shared_ptr<TargetLibrary>& library) {
  t.python_queue = false;
  t.allocate = [library](size_t nbytes, c10::DeviceIndex device) {
    return library->allocate(nbytes, device);
  };
  t.free = [library](uintptr_t handle, c10::DeviceIndex device) {
    library->release(handle, device);
  };
  for (int i = 0; i < t.device_count; ++i) {
    t.total_memory.push_back(library->total_memory(i));
    const auto place_of = [](const void* address) { return device_allocator().place_of(address); };
    t.queues.push_back(t.host_memory ? host_queue() : library->queue(i, place_of));
  }
  if (!t.host_memory)
    note_queue_in_use();  // drivers have threads
}

// A kernel of a plan that another process kept; none where the target does not take it.
LoadedKernel load_by(
    TargetLibrary& library,
    const std::string& path,
    const std::string& symbol,
    uint64_t file_checksum) {
  const auto bytes = read_whole(path);
  if (!bytes || checksum(*bytes) != file_checksum)
    return {};
  try {
    auto kernel = library.load(*bytes, symbol);
    const auto address = kernel->address();
    return {address, std::move(kernel)};
  } catch (const Error&) {  // of another driver, say
    return {};
  }
}

void bind_library(py::module_& m) {
  using Kernel = TargetLibrary::Kernel;
  const auto no_gil = py::call_guard<ReleasedInterpreter>();
  py::class_<Kernel, KernelOwner, std::shared_ptr<Kernel>>(
      m, "LibraryKernel", "A kernel that a target's library loaded, while this is there.")
      .def("address", &Kernel::address, "What a launch takes it by.");
  py::class_<TargetLibrary, std::shared_ptr<TargetLibrary>>(
      m, "TargetLibrary", "A target in a shared library: include/tenon.h has the interface.")
      .def_property_readonly("name", &TargetLibrary::name)
      .def_property_readonly("facts", &TargetLibrary::facts, "Lines `heading: fact`.")
      .def_property_readonly("devices", &TargetLibrary::devices, "How many there are.")
      .def_property_readonly("host_memory", &TargetLibrary::host_memory)
      .def_property_readonly("runs_kernels", &TargetLibrary::runs_kernels)
      .def_property_readonly("runs_calls", &TargetLibrary::runs_calls)
      .def_property_readonly(
          "copy_queues",
          &TargetLibrary::copy_queues,
          "Of each device, beside the queue of kernels.")
      .def("total_memory", &TargetLibrary::total_memory, "Bytes of a device.")
      .def("allocate", &TargetLibrary::allocate, "A handle of so many bytes on a device, or 0.")
      .def("free", &TargetLibrary::release, "Takes a handle of a device back.")
      .def(
          "load",
          [](TargetLibrary& library, const py::bytes& code, const std::string& entry) {
            const std::string_view text = code;
            const ReleasedInterpreter released;
            return library.load(text, entry);
          },
          "The kernel of that name in a binary or a source.");
  m.def(
      "open_target_library",
      &TargetLibrary::open,
      no_gil,
      "Opens the library at a path; RuntimeError says what is wrong with it.");
  m.def(
      "use_library_kernel_files",
      [](const std::shared_ptr<TargetLibrary>& library) {
        set_kernel_files(
            {[library](const auto& path, const auto& symbol, auto file_checksum) {
               return load_by(*library, path, symbol, file_checksum);
             },
             [](auto, auto) { return true; }});
      },
      "Kernels of plans that were kept are loaded by a target's library.");
}

Target bind_target(const py::object& object) {
  Target t;
  t.name = object.attr("name").cast<std::string>();
  const py::object backend = object.attr("backend"), native = object.attr("native");
  t.runs_plans = !backend.is_none();
  t.runs_attention = t.runs_plans && backend.attr("library").contains(py::str("tenon::attention"));
  t.host_memory = object.attr("host_memory").cast<bool>();
  t.device_count = object.attr("devices")().cast<c10::DeviceIndex>();
  if (!native.is_none()) {
    give_library(t, native.cast<std::shared_ptr<TargetLibrary>>());
    return t;
  }
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
      t.queues.push_back(python_queue(object, i));
  }
  return t;
}

const RegisterBindings target_bindings([](py::module_& m) {
  bind_library(m);
  m.def("set_target", [](const py::object& target) {
    set_target(bind_target(target));
    find_main_thread();
  });
  m.def("restore_handlers_after_fork", &restore_handlers_after_fork);
  m.def(
      "note_queue_in_use",
      &note_queue_in_use,
      "The target has threads, or its queue is in use: a fork's child would not have them.");
  m.def(
      "waits",
      [] {
        std::vector<std::tuple<int, std::string, double, int64_t>> found;
        for (const auto& [device, reason, since, thread] : all_waiting())
          found.emplace_back(device, reason, host_seconds() - since, thread);
        return found;
      },
      "Who waits for a device: tuples (device, reason, seconds so far, the thread's number).");
  m.def("survives_fork", &survives_fork, "Would a child that is forked now have the device?");
});

}  // namespace
}  // namespace tenon
