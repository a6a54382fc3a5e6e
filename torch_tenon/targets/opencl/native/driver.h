// The OpenCL driver, found in the library when the process runs: nothing is linked, and no header
// of OpenCL's is needed to build. Its devices, with a context for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

#include "tenon.h"

namespace tenon::opencl {

// Handles and numbers as the OpenCL specification's C interface has them.
using Platform = struct PlatformObject*;
using Device = struct DeviceObject*;
using Context = struct ContextObject*;
using CommandQueue = struct QueueObject*;
using Memory = struct MemoryObject*;
using Program = struct ProgramObject*;
using KernelObject = struct KernelHandle*;
using Event = struct EventObject*;
using CommandBuffer = struct CommandBufferObject*;

// Queues are in order, so waiting lists are empty but for a marker's.
using Waits = const Event*;
using Sizes = const size_t*;
using Code = int32_t;
template <class Object>
using Ask = Code(Object, uint32_t, size_t, void*, size_t*);
template <class Host>
using Transfer =
    Code(CommandQueue, Memory, uint32_t, size_t, size_t, Host, uint32_t, Waits, Event*);
template <class Source>
using Change = Code(CommandQueue, Memory, Source, size_t, size_t, size_t, uint32_t, Waits, Event*);
using Launch =
    Code(CommandQueue, KernelObject, uint32_t, Sizes, Sizes, Sizes, uint32_t, Waits, Event*);
using Devices = const Device*;
using Binaries = const unsigned char**;
using MakeContext = Context(const intptr_t*, uint32_t, Devices, void*, void*, Code*);
using MakeProgram = Program(Context, uint32_t, Devices, Sizes, Binaries, Code*, Code*);
using MakeProgramOfText = Program(Context, uint32_t, const char**, Sizes, Code*);

using Record = Code(
    CommandBuffer,
    CommandQueue,
    const uint64_t*,
    KernelObject,
    uint32_t,
    Sizes,
    Sizes,
    Sizes,
    uint32_t,
    const uint32_t*,
    uint32_t*,
    void**);

#define TENON_OPENCL_FUNCTIONS(F)                                                   \
  F(clGetPlatformIDs, Code(uint32_t, Platform*, uint32_t*))                         \
  F(clGetPlatformInfo, Ask<Platform>)                                               \
  F(clGetDeviceIDs, Code(Platform, uint64_t, uint32_t, Device*, uint32_t*))         \
  F(clGetDeviceInfo, Ask<Device>)                                                   \
  F(clCreateContext, MakeContext)                                                   \
  F(clCreateCommandQueue, CommandQueue(Context, Device, uint64_t, Code*))           \
  F(clCreateBuffer, Memory(Context, uint64_t, size_t, void*, Code*))                \
  F(clReleaseMemObject, Code(Memory))                                               \
  F(clCreateProgramWithSource, MakeProgramOfText)                                   \
  F(clCreateProgramWithBinary, MakeProgram)                                         \
  F(clBuildProgram, Code(Program, uint32_t, Devices, const char*, void*, void*))    \
  F(clGetProgramBuildInfo, Code(Program, Device, uint32_t, size_t, void*, size_t*)) \
  F(clReleaseProgram, Code(Program))                                                \
  F(clCreateKernel, KernelObject(Program, const char*, Code*))                      \
  F(clSetKernelArg, Code(KernelObject, uint32_t, size_t, const void*))              \
  F(clGetKernelInfo, Ask<KernelObject>)                                             \
  F(clReleaseKernel, Code(KernelObject))                                            \
  F(clEnqueueNDRangeKernel, Launch)                                                 \
  F(clEnqueueReadBuffer, Transfer<void*>)                                           \
  F(clEnqueueWriteBuffer, Transfer<const void*>)                                    \
  F(clEnqueueCopyBuffer, Change<Memory>)                                            \
  F(clEnqueueFillBuffer, Change<const void*>)                                       \
  F(clEnqueueMarkerWithWaitList, Code(CommandQueue, uint32_t, Waits, Event*))       \
  F(clGetExtensionFunctionAddressForPlatform, void*(Platform, const char*))         \
  F(clFlush, Code(CommandQueue))                                                    \
  F(clFinish, Code(CommandQueue))                                                   \
  F(clWaitForEvents, Code(uint32_t, Waits))                                         \
  F(clGetEventInfo, Ask<Event>)                                                     \
  F(clGetEventProfilingInfo, Ask<Event>)                                            \
  F(clReleaseEvent, Code(Event))

// Those of cl_khr_command_buffer whose arguments are the same in all its versions.
#define TENON_OPENCL_COMMAND_BUFFERS(F)                                    \
  F(clCreateCommandBufferKHR,                                              \
    CommandBuffer(uint32_t, const CommandQueue*, const uint64_t*, Code*))  \
  F(clCommandNDRangeKernelKHR, Record)                                     \
  F(clFinalizeCommandBufferKHR, Code(CommandBuffer))                       \
  F(clEnqueueCommandBufferKHR,                                             \
    Code(uint32_t, CommandQueue*, CommandBuffer, uint32_t, Waits, Event*)) \
  F(clReleaseCommandBufferKHR, Code(CommandBuffer))

// Why a function of the interface fails. It does not leave the library: see target.cpp.
struct Failed final : std::exception {
  Failed(tenon_code of, std::string why) : code(of), text(std::move(why)) {}
  const char* what() const noexcept override {
    return text.c_str();
  }

  tenon_code code;
  std::string text;
};

struct Driver {
  // Opens the library and takes the devices of one kind of the first platform that has any which
  // compile, a GPU's before a CPU's.
  Driver();

#define TENON_OPENCL_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  TENON_OPENCL_FUNCTIONS(TENON_OPENCL_MEMBER)
  TENON_OPENCL_COMMAND_BUFFERS(TENON_OPENCL_MEMBER)
#undef TENON_OPENCL_MEMBER

  std::vector<Device> devices;
  Context context = nullptr;
  bool is_processor = false;  // the devices are the processor
  bool has_command_buffers() const {
    return clReleaseCommandBufferKHR != nullptr;
  }

  // Raises Failed where that is an error of the driver's.
  void check(Code code, const char* what) const;
  // What the driver says of a device: a text, or a number of the type.
  std::string text_of(Device device, uint32_t about) const;
  template <class Number>
  Number number_of(Device device, uint32_t about) const {
    Number found = 0;
    check(clGetDeviceInfo(device, about, sizeof(found), &found, nullptr), "asking a device");
    return found;
  }
  // Lines "heading: fact": the device, its driver, and what of OpenCL's options it does not have.
  std::string facts() const;

 private:
  void open();
  void find_command_buffers(Platform platform);
  bool has_extension(const char* name) const;
  std::vector<Device> find_devices() const;
};

constexpr uint32_t kMostComputeUnits = 0x1002;  // CL_DEVICE_MAX_COMPUTE_UNITS
constexpr uint32_t kSingleNumbers = 0x101B;     // CL_DEVICE_SINGLE_FP_CONFIG
constexpr uint32_t kGlobalMemory = 0x101F;      // CL_DEVICE_GLOBAL_MEM_SIZE
constexpr uint32_t kDeviceName = 0x102B;        // CL_DEVICE_NAME

}  // namespace tenon::opencl
