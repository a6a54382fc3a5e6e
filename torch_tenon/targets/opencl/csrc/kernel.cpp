// The driver's library, and kernels of it.

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "bind.h"
#include "driver.h"
#include "execute/plan_file.h"

namespace tenon::opencl {

Driver& driver() {
  static auto* instance = new Driver();
  return *instance;
}

void check(int32_t code, const char* what) {
  const char* meaning = code == -4 || code == -5 ? ": the device has no memory left"
                        : code == -2             ? ": the device was lost with all that it held"
                                                 : "";
  TORCH_CHECK(code == 0, "OpenCL: ", what, " failed with ", code, meaning);
}

KernelObject Kernel::object(size_t queue) {
  auto& found = by_queue[queue];
  if (found == nullptr) {
    int32_t code = 0;
    found = driver().clCreateKernel(program, name.c_str(), &code);
    check(code, "making a kernel");
  }
  return found;
}

namespace {

void open_driver(const std::string& path, uintptr_t context, uintptr_t device, size_t queues) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "the OpenCL library does not load: ", dlerror());
  auto& d = driver();
  const auto find = [&](auto*& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    TORCH_CHECK(function != nullptr, path, " has no ", name, ": OpenCL 1.2 is needed");
  };
#define TENON_OPENCL_FIND(name) find(d.name, #name)
  TENON_OPENCL_FIND(clCreateKernel), TENON_OPENCL_FIND(clSetKernelArg);
  TENON_OPENCL_FIND(clEnqueueNDRangeKernel), TENON_OPENCL_FIND(clEnqueueReadBuffer);
  TENON_OPENCL_FIND(clEnqueueWriteBuffer), TENON_OPENCL_FIND(clEnqueueCopyBuffer);
  TENON_OPENCL_FIND(clEnqueueFillBuffer), TENON_OPENCL_FIND(clEnqueueMarkerWithWaitList);
  TENON_OPENCL_FIND(clFlush), TENON_OPENCL_FIND(clWaitForEvents);
  TENON_OPENCL_FIND(clGetEventInfo), TENON_OPENCL_FIND(clGetEventProfilingInfo);
  TENON_OPENCL_FIND(clReleaseEvent), TENON_OPENCL_FIND(clCreateProgramWithBinary);
  TENON_OPENCL_FIND(clBuildProgram);
#undef TENON_OPENCL_FIND
  d.context = reinterpret_cast<Context>(context);
  d.device = reinterpret_cast<Device>(device);
  d.queues = queues;
}

// `name` ends in the work-items of a work-group and the number of checks that the kernel reports
// on: "k_0123abcd_64_2".
uintptr_t make_kernel(uintptr_t program, const std::string& name) {
  const auto last = name.rfind('_'), before = name.rfind('_', last - 1);
  auto made = std::make_unique<Kernel>(
      reinterpret_cast<Program>(program),
      name,
      std::stoul(name.substr(before + 1)),
      std::stoul(name.substr(last + 1)) * kStatusWords);
  made->by_queue.resize(driver().queues);
  made->object(0);                                     // it is there
  return reinterpret_cast<uintptr_t>(made.release());  // for the life of the process
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
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  int32_t status = 0, code = 0;
  auto* program = driver().clCreateProgramWithBinary(
      driver().context, 1, &driver().device, &size, &bytes, &status, &code);
  if (code != 0 || status != 0 ||
      driver().clBuildProgram(program, 1, &driver().device, "", nullptr, nullptr) != 0)
    return 0;
  return kernel = make_kernel(reinterpret_cast<uintptr_t>(program), name);
}

const RegisterBindings registered([](pybind11::module_& m) {
  m.def("open_opencl", &open_driver);
  m.def("opencl_kernel", &make_kernel, "What a launch takes a kernel of a program by.");
  m.def("use_opencl_kernel_files", [] {
    set_kernel_files({load_kernel, [](auto, auto) { return true; }});
  });
});

}  // namespace
}  // namespace tenon::opencl
