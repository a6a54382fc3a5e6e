#include "driver.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace tenon::opencl {
namespace {

constexpr uint32_t kPlatformVersion = 0x0901;    // CL_PLATFORM_VERSION
constexpr uint32_t kDeviceType = 0x1000;         // CL_DEVICE_TYPE
constexpr uint32_t kAvailable = 0x1027;          // CL_DEVICE_AVAILABLE
constexpr uint32_t kCompilerAvailable = 0x1028;  // CL_DEVICE_COMPILER_AVAILABLE
constexpr uint32_t kDriverVersion = 0x102D;      // CL_DRIVER_VERSION
constexpr uint32_t kDeviceVersion = 0x102F;      // CL_DEVICE_VERSION
constexpr uint32_t kExtensions = 0x1030;         // CL_DEVICE_EXTENSIONS
constexpr uint32_t kPlatform = 0x1031;           // CL_DEVICE_PLATFORM
constexpr intptr_t kContextPlatform = 0x1084;    // CL_CONTEXT_PLATFORM
constexpr uint64_t kAllTypes = 0xFFFFFFFF;       // CL_DEVICE_TYPE_ALL
constexpr uint64_t kCpu = 1 << 1;                // CL_DEVICE_TYPE_CPU
constexpr uint64_t kGpu = 1 << 2;                // CL_DEVICE_TYPE_GPU
constexpr uint64_t kOutOfOrder = 1 << 0;         // CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE
// CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR
constexpr uint32_t kQueuesOfCommandBuffers = 0x12AA;

// What a device without an extension lacks, and what becomes of that.
constexpr const char* kOptional[][2] = {
    {"cl_khr_fp16", "half (float16 is computed in float32)"},
    {"cl_khr_fp64", "double (no kernels are generated: ops run one by one, on the host)"},
    {"cl_khr_int64_base_atomics",
     "64-bit atomics (stores of a scatter are shared out without any)"},
};

tenon_code meaning_of(Code code) {
  switch (code) {
    case -4:   // CL_MEM_OBJECT_ALLOCATION_FAILURE
    case -5:   // CL_OUT_OF_RESOURCES
    case -6:   // CL_OUT_OF_HOST_MEMORY
    case -61:  // CL_INVALID_BUFFER_SIZE: larger than any block of the device
      return TENON_OUT_OF_MEMORY;
    case -2:  // CL_DEVICE_NOT_AVAILABLE
      return TENON_DEVICE_LOST;
    default:
      return TENON_ERROR;
  }
}

std::string stripped(const std::string& text) {
  const char* blanks = " \t\n\v\f\r";
  const auto first = text.find_first_not_of(blanks);
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// A driver's answer of unknown length, which ends with a zero.
template <class Ask>
std::string text_by(Ask ask) {
  size_t nbytes = 0;
  if (ask(size_t{0}, nullptr, &nbytes) != 0 || nbytes == 0)
    return "";
  std::string found(nbytes, '\0');
  if (ask(nbytes, found.data(), nullptr) != 0)
    return "";
  return found.substr(0, found.find('\0'));
}

// Packages of Python's bring a library of their own. The process has then one list of platforms.
int note_opencl(struct dl_phdr_info* info, size_t, void* found) {
  const std::string path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const auto file = path.rfind("/libOpenCL");
  if (file == std::string::npos || path.find('/', file + 1) != std::string::npos)
    return 0;
  *static_cast<std::string*>(found) = path;
  return 1;
}

}  // namespace

Driver::Driver() {
  open();
  devices = find_devices();
  auto* const platform = number_of<Platform>(devices[0], kPlatform);
  const intptr_t properties[] = {kContextPlatform, reinterpret_cast<intptr_t>(platform), 0};
  Code code = 0;
  const auto count = static_cast<uint32_t>(devices.size());
  context = clCreateContext(properties, count, devices.data(), nullptr, nullptr, &code);
  check(code, "making a context");
  is_processor = (number_of<uint64_t>(devices[0], kDeviceType) & kCpu) != 0;
  find_command_buffers(platform);
}

// All of them or none.
void Driver::find_command_buffers(Platform platform) {
  // What its queues have to be: ours are in order, and are asked for times.
  if (!has_extension("cl_khr_command_buffer") ||
      (number_of<uint64_t>(devices[0], kQueuesOfCommandBuffers) & kOutOfOrder) != 0)
    return;
  bool has_all = true;
#define TENON_OPENCL_FIND(name, ...)                                                               \
  name =                                                                                           \
      reinterpret_cast<decltype(name)>(clGetExtensionFunctionAddressForPlatform(platform, #name)); \
  has_all = has_all && name != nullptr;
  TENON_OPENCL_COMMAND_BUFFERS(TENON_OPENCL_FIND)
#undef TENON_OPENCL_FIND
  if (!has_all)
    clReleaseCommandBufferKHR = nullptr;
}

bool Driver::has_extension(const char* name) const {
  const auto extensions = " " + text_of(devices[0], kExtensions) + " ";
  return extensions.find(std::string(" ") + name + " ") != std::string::npos;
}

void Driver::open() {
  std::string path = "libOpenCL.so.1";
  dl_iterate_phdr(note_opencl, &path);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Failed(
        TENON_UNSUPPORTED,
        std::string("there is no library of OpenCL (") + dlerror() +
            "): install the loader (Debian: apt-get install ocl-icd-libopencl1) and a driver");
#define TENON_OPENCL_FIND(name, ...)                              \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (name == nullptr)                                            \
    throw Failed(TENON_UNSUPPORTED, path + " has no " #name ": OpenCL 1.2 is needed");
  TENON_OPENCL_FUNCTIONS(TENON_OPENCL_FIND)
#undef TENON_OPENCL_FIND
}

std::vector<Device> Driver::find_devices() const {
  uint32_t count = 0;
  if (clGetPlatformIDs(0, nullptr, &count) != 0)
    count = 0;  // the loader's way to say that there are none
  std::vector<Platform> platforms(count);
  if (count > 0)
    check(clGetPlatformIDs(count, platforms.data(), nullptr), "asking for platforms");
  std::vector<Device> found;
  for (auto* platform : platforms) {
    if (clGetDeviceIDs(platform, kAllTypes, 0, nullptr, &count) != 0)
      continue;  // it has none
    std::vector<Device> all(count);
    check(clGetDeviceIDs(platform, kAllTypes, count, all.data(), nullptr), "asking for devices");
    for (auto* device : all)
      if (number_of<uint32_t>(device, kAvailable) != 0 &&
          number_of<uint32_t>(device, kCompilerAvailable) != 0)
        found.push_back(device);
  }
  if (found.empty())
    throw Failed(
        TENON_UNSUPPORTED,
        "there is no OpenCL platform with a device: install the vendor's driver, or PoCL for the "
        "processor (Debian: apt-get install pocl-opencl-icd)");
  const auto gpu = std::find_if(found.begin(), found.end(), [&](Device device) {
    return (number_of<uint64_t>(device, kDeviceType) & kGpu) != 0;
  });
  Device first = gpu == found.end() ? found[0] : *gpu;
  const auto other = [&](Device device) {
    return number_of<Platform>(device, kPlatform) != number_of<Platform>(first, kPlatform) ||
           text_of(device, kDeviceName) != text_of(first, kDeviceName);
  };
  found.erase(std::remove_if(found.begin(), found.end(), other), found.end());
  return found;
}

void Driver::check(Code code, const char* what) const {
  if (code == 0)
    return;
  const auto meaning = meaning_of(code);
  std::string text = std::string("OpenCL: ") + what + " failed with " + std::to_string(code);
  if (meaning == TENON_DEVICE_LOST)
    text += ": the device was lost with all that it held";
  throw Failed(meaning, std::move(text));
}

std::string Driver::text_of(Device device, uint32_t about) const {
  return stripped(text_by([&](size_t nbytes, void* text, size_t* needed) {
    return clGetDeviceInfo(device, about, nbytes, text, needed);
  }));
}

std::string Driver::facts() const {
  Device device = devices[0];
  const auto platform = number_of<Platform>(device, kPlatform);
  const auto version = stripped(text_by([&](size_t nbytes, void* text, size_t* needed) {
    return clGetPlatformInfo(platform, kPlatformVersion, nbytes, text, needed);
  }));
  std::string lacks;
  for (const auto& [extension, text] : kOptional)
    if (!has_extension(extension))
      lacks += (lacks.empty() ? "" : "; ") + std::string(text);
  std::ostringstream facts;
  facts << "OpenCL device: " << text_of(device, kDeviceName) << ", "
        << number_of<uint32_t>(device, kMostComputeUnits) << " compute units, "
        << text_of(device, kDeviceVersion) << "\nOpenCL driver: " << version << ", "
        << text_of(device, kDriverVersion)
        << "\nThe device lacks: " << (lacks.empty() ? "nothing that is made use of" : lacks)
        << "\n";
  return facts.str();
}

}  // namespace tenon::opencl
