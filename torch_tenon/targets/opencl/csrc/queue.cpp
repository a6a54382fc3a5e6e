// A device's in-order command queue, and the kernels that it launches without Python.

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <fstream>
#include <iterator>
#include <map>

#include "bind.h"
#include "device/allocator.h"
#include "device/fork.h"
#include "driver.h"
#include "execute/plan_file.h"
#include "record/archive.h"

namespace tenon::opencl {
namespace {

Driver driver;  // as `open_driver` finds it

void check(int32_t code, const char* what) {
  const char* meaning = code == -2 ? ": the device was lost with all that it held" : "";
  TORCH_CHECK(code == 0, "OpenCL: ", what, " failed with ", code, meaning);
}

// A kernel as a plan holds it. Arguments belong to a driver's kernel object, so each queue has one
// of its own. They keep their program, and what is enqueued keeps them.
struct Kernel final : KernelOwner {
  // `name` ends in the work-items of a work-group and the number of checks that the kernel reports
  // on: "k_0123abcd_64_2".
  Kernel(Program program, const std::string& name);
  ~Kernel() override {
    for (auto* object : by_queue)
      driver.clReleaseKernel(object);
  }
  size_t nbytes() const override {
    return 0;  // the driver does not say
  }
  uintptr_t address() {
    return reinterpret_cast<uintptr_t>(this);
  }

  std::string name;
  size_t local;  // work-items of a work-group
  size_t status_words;
  std::vector<KernelObject> by_queue;
};

Kernel::Kernel(Program program, const std::string& of) : name(of) {
  const auto last = name.rfind('_'), before = name.rfind('_', last - 1);
  local = std::stoul(name.substr(before + 1));
  status_words = std::stoul(name.substr(last + 1)) * kStatusWords;
  int32_t code = 0;
  for (size_t k = 0; k < driver.queues; ++k) {
    auto* made = driver.clCreateKernel(program, name.c_str(), &code);
    check(code, "making a kernel");
    by_queue.push_back(made);
  }
}

class OpenCLCommit final : public Commit {
 public:
  explicit OpenCLCommit(Event event) : event_(event, driver.clReleaseEvent) {}

  bool passed() override {
    return state() <= 0;  // else queued, submitted or running
  }

  void wait() override {
    const Event event = event_.get();
    const auto code = driver.clWaitForEvents(1, &event);
    if (!passed())
      check(code, "waiting for what was committed");
  }

  double seconds() override {
    uint64_t nanoseconds = 0;
    driver.clGetEventProfilingInfo(
        event_.get(), kCommandEnd, sizeof(nanoseconds), &nanoseconds, nullptr);
    return static_cast<double>(nanoseconds) * 1e-9;
  }

  std::shared_ptr<Failure> failure() override {
    const auto code = state();
    if (code >= 0)
      return nullptr;
    return Failure::of([code] { check(code, "what was committed"); });
  }

 private:
  // A device that does not tell any more is lost.
  int32_t state() const {
    int32_t state = 1;
    const auto code =
        driver.clGetEventInfo(event_.get(), kExecutionStatus, sizeof(state), &state, nullptr);
    return code == 0 ? state : code;
  }

  const std::shared_ptr<EventObject> event_;
};

class OpenCLQueue final : public Queue {
 public:
  OpenCLQueue(CommandQueue queue, size_t number, Memory status)
      : queue_(queue), number_(number), status_(status) {}

  void copy(void* dst, const void* src, size_t nbytes, CopyKind kind) override {
    if (kind == CopyKind::host_to_device) {
      const auto [to, start] = place(dst);
      return enqueue("a copy to it", driver.clEnqueueWriteBuffer, to, 0u, start, nbytes, src);
    }
    const auto [from, offset] = place(src);
    if (kind == CopyKind::device_to_host)
      return enqueue(
          "a copy to the host", driver.clEnqueueReadBuffer, from, 0u, offset, nbytes, dst);
    const auto [to, start] = place(dst);
    enqueue("a copy", driver.clEnqueueCopyBuffer, from, to, offset, start, nbytes);
  }

  // The first number is of work-groups, the others are arguments after the pointers. A pointer is a
  // buffer and an offset in bytes.
  void launch(
      KernelFunction function,
      c10::ArrayRef<void*> pointers,
      c10::ArrayRef<int64_t> numbers,
      int64_t* status) override {
    auto& kernel = *reinterpret_cast<Kernel*>(function);
    if (numbers[0] == 0)
      return;
    auto* object = kernel.by_queue[number_];
    uint32_t next = 0;
    for (const auto* pointer : pointers) {
      const auto [memory, offset] = place(pointer);
      set(object, next++, memory);
      set(object, next++, offset);
    }
    for (const auto number : numbers.slice(1))
      set(object, next++, number);
    const size_t words = kernel.status_words * sizeof(int64_t);
    if (words > 0) {
      const int64_t zero = 0;
      set(object, next++, status_);
      enqueue("clearing", driver.clEnqueueFillBuffer, status_, &zero, sizeof(zero), 0ul, words);
    }
    const size_t local = kernel.local, global = static_cast<size_t>(numbers[0]) * local;
    enqueue(
        kernel.name.c_str(), driver.clEnqueueNDRangeKernel, object, 1u, nullptr, &global, &local);
    if (words > 0)
      enqueue("reading checks", driver.clEnqueueReadBuffer, status_, 0u, 0ul, words, status);
  }

  bool runs_calls() const override {
    return false;
  }
  void call(std::function<void(c10::ArrayRef<void*>)>, c10::ArrayRef<void*>) override {
    TORCH_CHECK(false, "an OpenCL device does not run the host's code");
  }

  Ticket commit() override {
    if (!open_)
      return last_;
    Event event = nullptr;
    check(
        driver.clEnqueueMarkerWithWaitList(queue_, 0, nullptr, &event), "marking a point in time");
    auto made = std::make_shared<OpenCLCommit>(event);
    check(driver.clFlush(queue_), "handing commands to the device");
    open_ = false;
    return last_ = std::move(made);
  }

 private:
  static std::pair<Memory, uint64_t> place(const void* pointer) {
    if (pointer == nullptr)
      return {nullptr, 0};
    const auto [handle, offset] = device_allocator().place_of(pointer);
    return {reinterpret_cast<Memory>(handle), offset};
  }

  template <class T>
  static void set(KernelObject object, uint32_t index, const T& value) {
    check(driver.clSetKernelArg(object, index, sizeof(T), &value), "setting an argument");
  }

  // One of the driver's functions, which waits for nothing but what is in the queue.
  template <class Function, class... Arguments>
  void enqueue(const char* what, Function* function, Arguments... arguments) {
    open_ = true;
    check(function(queue_, arguments..., 0, nullptr, nullptr), what);
  }

  const CommandQueue queue_;
  const size_t number_;
  const Memory status_;  // of the kernel in progress: what its checks find
  bool open_ = false;    // was anything enqueued since the last commit?
  Ticket last_ = passed_at(0);
};

// The kernels of programs that other processes built, while a plan has one.
struct Loaded {
  std::mutex mutex;  // not of forks: a child has none of the driver's threads
  std::map<std::string, std::weak_ptr<Kernel>> by_name;
};

std::shared_ptr<Kernel> build_kernel(const std::string& binary, const std::string& name) {
  const auto* start = reinterpret_cast<const unsigned char*>(binary.data());
  const auto& devices = driver.devices;
  std::vector<const unsigned char*> bytes(devices.size(), start);
  const std::vector<size_t> sizes(devices.size(), binary.size());
  int32_t code = 0;
  auto* made = driver.clCreateProgramWithBinary(
      driver.context, sizes.size(), devices.data(), sizes.data(), bytes.data(), nullptr, &code);
  if (code != 0)
    return nullptr;
  const std::shared_ptr<ProgramObject> program(made, driver.clReleaseProgram);
  if (driver.clBuildProgram(made, 0, nullptr, "", nullptr, nullptr) != 0)
    return nullptr;
  return std::make_shared<Kernel>(made, name);
}

// A kernel of a program that another process built; none where the driver does not take it.
LoadedKernel load_kernel(const std::string& path, const std::string& name, uint64_t file_checksum) {
  static auto* loaded = new Loaded();
  const std::lock_guard<std::mutex> lock(loaded->mutex);
  auto& known = loaded->by_name[c10::str(path, ":", name, ":", file_checksum)];
  auto kernel = known.lock();
  if (!kernel) {
    std::erase_if(loaded->by_name, [&](const auto& one) {
      return one.second.expired() && &one.second != &known;
    });
    std::ifstream file(path, std::ios::binary);
    const std::string binary{std::istreambuf_iterator<char>(file), {}};
    if (!file || checksum(binary) != file_checksum)
      return {};
    known = kernel = build_kernel(binary, name);
  }
  return kernel ? LoadedKernel{kernel->address(), kernel} : LoadedKernel{};
}

void open_driver(
    const std::string& path,
    uintptr_t context,
    const std::vector<uintptr_t>& devices,
    size_t queues) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, dlerror());
#define TENON_OPENCL_FIND(name, ...)                                            \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, #name)); \
  TORCH_CHECK(driver.name != nullptr, path, " has no " #name ": OpenCL 1.2 is needed");
  TENON_OPENCL_FUNCTIONS(TENON_OPENCL_FIND)
#undef TENON_OPENCL_FIND
  driver.context = reinterpret_cast<Context>(context);
  for (const auto device : devices)
    driver.devices.push_back(reinterpret_cast<Device>(device));
  driver.queues = queues;
  note_queue_in_use();  // drivers have threads
}

const RegisterBindings registered([](pybind11::module_& m) {
  m.def("open_opencl", &open_driver);
  pybind11::class_<Kernel, KernelOwner, std::shared_ptr<Kernel>>(
      m, "OpenCLKernel", "A kernel of a program.")
      .def(pybind11::init([](uintptr_t program, const std::string& name) {
        return std::make_shared<Kernel>(reinterpret_cast<Program>(program), name);
      }))
      .def("address", &Kernel::address, "What a launch takes it by, while this is there.");
  m.def("use_opencl_kernel_files", [] {
    set_kernel_files({load_kernel, [](auto, auto) { return true; }});
  });
  m.def("opencl_queue", [](uintptr_t queue, size_t number, uintptr_t status) {
    return NativeQueue{std::make_unique<OpenCLQueue>(
        reinterpret_cast<CommandQueue>(queue), number, reinterpret_cast<Memory>(status))};
  });
});

}  // namespace
}  // namespace tenon::opencl
