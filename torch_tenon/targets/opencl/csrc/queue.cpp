// A device's in-order command queue, and the kernels that it launches without Python.

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <fstream>
#include <iterator>

#include "bind.h"
#include "device/allocator.h"
#include "device/fork.h"
#include "device/tickets.h"
#include "driver.h"
#include "execute/plan_file.h"

namespace tenon::opencl {
namespace {

Driver driver;  // as `open_driver` finds it

void check(int32_t code, const char* what) {
  const char* meaning = code == -2 ? ": the device was lost with all that it held" : "";
  TORCH_CHECK(code == 0, "OpenCL: ", what, " failed with ", code, meaning);
}

// A kernel as a plan holds it. Arguments belong to a driver's kernel object, so each queue has one
// of its own.
struct Kernel {
  std::string name;
  size_t local;  // work-items of a work-group
  size_t status_words;
  std::vector<KernelObject> by_queue;
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
    std::shared_ptr<EventObject> passing(event, driver.clReleaseEvent);
    check(driver.clFlush(queue_), "handing commands to the device");
    open_ = false;
    return last_ = tickets_.add(std::move(passing));
  }

  bool passed(Ticket ticket) override {
    const auto found = tickets_.find(ticket);
    if (!found)
      return true;
    int32_t state = 1;
    check(
        driver.clGetEventInfo(found.get(), kExecutionStatus, sizeof(state), &state, nullptr),
        "asking for the state of a commit");
    if (state > 0)  // queued, submitted or running
      return false;
    uint64_t nanoseconds = 0;
    driver.clGetEventProfilingInfo(
        found.get(), kCommandEnd, sizeof(nanoseconds), &nanoseconds, nullptr);
    tickets_.pass(ticket, static_cast<double>(nanoseconds) * 1e-9);
    check(state, "what was committed");
    return true;
  }

  void wait(Ticket ticket) override {
    if (const auto found = tickets_.find(ticket)) {
      const Event event = found.get();
      driver.clWaitForEvents(1, &event);
      passed(ticket);
    }
  }

  double seconds(Ticket ticket) override {
    wait(ticket);
    return tickets_.seconds(ticket);
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
  Ticket last_ = 0;
  Tickets<EventObject> tickets_;
};

// `name` ends in the work-items of a work-group and the number of checks that the kernel reports
// on: "k_0123abcd_64_2".
uintptr_t make_kernel(uintptr_t program, const std::string& name) {
  const auto last = name.rfind('_'), before = name.rfind('_', last - 1);
  auto made = std::make_unique<Kernel>();  // for the life of the process
  made->name = name;
  made->local = std::stoul(name.substr(before + 1));
  made->status_words = std::stoul(name.substr(last + 1)) * kStatusWords;
  int32_t code = 0;
  for (size_t k = 0; k < driver.queues; ++k) {
    auto* from = reinterpret_cast<Program>(program);
    made->by_queue.push_back(driver.clCreateKernel(from, name.c_str(), &code));
    check(code, "making a kernel");
  }
  return reinterpret_cast<uintptr_t>(made.release());
}

// A kernel of a program that another process built; 0 where the driver does not take it.
uintptr_t load_kernel(const std::string& path, const std::string& name) {
  static std::mutex mutex;
  static auto* known = new std::map<std::string, uintptr_t>();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& kernel = (*known)[path + ":" + name];
  if (kernel != 0)
    return kernel;
  std::ifstream file(path, std::ios::binary);
  const std::string binary{std::istreambuf_iterator<char>(file), {}};
  const auto* start = reinterpret_cast<const unsigned char*>(binary.data());
  const auto& devices = driver.devices;
  std::vector<const unsigned char*> bytes(devices.size(), start);
  const std::vector<size_t> sizes(devices.size(), binary.size());
  int32_t code = 0;
  auto* program = driver.clCreateProgramWithBinary(
      driver.context, sizes.size(), devices.data(), sizes.data(), bytes.data(), nullptr, &code);
  if (code != 0 || driver.clBuildProgram(program, 0, nullptr, "", nullptr, nullptr) != 0)
    return 0;
  return kernel = make_kernel(reinterpret_cast<uintptr_t>(program), name);
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
  m.def("opencl_kernel", &make_kernel, "What a launch takes a kernel of a program by.");
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
