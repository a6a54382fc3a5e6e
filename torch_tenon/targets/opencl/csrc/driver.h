// The part of the OpenCL driver that launches need, found in the library when the process runs:
// nothing is linked, and no header of OpenCL's is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace tenon::opencl {

// Handles and numbers as the OpenCL specification's C interface has them.
using Context = struct ContextObject*;
using CommandQueue = struct QueueObject*;
using Device = struct DeviceObject*;
using Memory = struct MemoryObject*;
using Program = struct ProgramObject*;
using KernelObject = struct KernelHandle*;
using Event = struct EventObject*;

constexpr uint32_t kExecutionStatus = 0x11D3;  // CL_EVENT_COMMAND_EXECUTION_STATUS
constexpr uint32_t kCommandEnd = 0x1283;       // CL_PROFILING_COMMAND_END

// Waiting lists are always empty, since queues are in order.
using Waits = const Event*;
using Sizes = const size_t*;
using Bytes = const unsigned char**;
template <class Host>
using Transfer =
    int32_t(CommandQueue, Memory, uint32_t, size_t, size_t, Host, uint32_t, Waits, Event*);
template <class Source>
using Change =
    int32_t(CommandQueue, Memory, Source, size_t, size_t, size_t, uint32_t, Waits, Event*);
using Launch =
    int32_t(CommandQueue, KernelObject, uint32_t, Sizes, Sizes, Sizes, uint32_t, Waits, Event*);
using MakeProgram = Program(Context, uint32_t, const Device*, Sizes, Bytes, int32_t*, int32_t*);

#define TENON_OPENCL_FUNCTIONS(F)                                                \
  F(clCreateKernel, KernelObject(Program, const char*, int32_t*))                \
  F(clSetKernelArg, int32_t(KernelObject, uint32_t, size_t, const void*))        \
  F(clEnqueueNDRangeKernel, Launch)                                              \
  F(clEnqueueReadBuffer, Transfer<void*>)                                        \
  F(clEnqueueWriteBuffer, Transfer<const void*>)                                 \
  F(clEnqueueCopyBuffer, Change<Memory>)                                         \
  F(clEnqueueFillBuffer, Change<const void*>)                                    \
  F(clEnqueueMarkerWithWaitList, int32_t(CommandQueue, uint32_t, Waits, Event*)) \
  F(clFlush, int32_t(CommandQueue))                                              \
  F(clWaitForEvents, int32_t(uint32_t, Waits))                                   \
  F(clGetEventInfo, int32_t(Event, uint32_t, size_t, void*, size_t*))            \
  F(clGetEventProfilingInfo, int32_t(Event, uint32_t, size_t, void*, size_t*))   \
  F(clReleaseEvent, int32_t(Event))                                              \
  F(clReleaseKernel, int32_t(KernelObject))                                      \
  F(clReleaseProgram, int32_t(Program))                                          \
  F(clCreateProgramWithBinary, MakeProgram)                                      \
  F(clBuildProgram, int32_t(Program, uint32_t, const Device*, const char*, void*, void*))

struct Driver {
#define TENON_OPENCL_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  TENON_OPENCL_FUNCTIONS(TENON_OPENCL_MEMBER)
#undef TENON_OPENCL_MEMBER
  // What kernels are made for: a context of devices of one kind, and how many queues they have.
  Context context = nullptr;
  std::vector<Device> devices;
  size_t queues = 0;
};

}  // namespace tenon::opencl
