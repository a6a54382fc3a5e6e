// The part of the OpenCL driver that launches need, found in the library when the process runs:
// nothing is linked, and no header of OpenCL's is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
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

constexpr int32_t kComplete = 0;               // CL_COMPLETE, CL_SUCCESS
constexpr uint32_t kExecutionStatus = 0x11D3;  // CL_EVENT_COMMAND_EXECUTION_STATUS
constexpr uint32_t kCommandEnd = 0x1283;       // CL_PROFILING_COMMAND_END

// The functions by OpenCL's names. Waiting lists are always empty, since queues are in order.
struct Driver {
  using Waits = const Event*;
  using Sizes = const size_t*;
  KernelObject (*clCreateKernel)(Program, const char*, int32_t*);
  int32_t (*clSetKernelArg)(KernelObject, uint32_t, size_t, const void*);
  using Launch =
      int32_t(CommandQueue, KernelObject, uint32_t, Sizes, Sizes, Sizes, uint32_t, Waits, Event*);
  Launch* clEnqueueNDRangeKernel;
  template <class Host>
  using Transfer =
      int32_t(CommandQueue, Memory, uint32_t, size_t, size_t, Host, uint32_t, Waits, Event*);
  Transfer<void*>* clEnqueueReadBuffer;
  Transfer<const void*>* clEnqueueWriteBuffer;
  template <class Source>
  using Change =
      int32_t(CommandQueue, Memory, Source, size_t, size_t, size_t, uint32_t, Waits, Event*);
  Change<Memory>* clEnqueueCopyBuffer;
  Change<const void*>* clEnqueueFillBuffer;
  int32_t (*clEnqueueMarkerWithWaitList)(CommandQueue, uint32_t, Waits, Event*);
  int32_t (*clFlush)(CommandQueue);
  int32_t (*clWaitForEvents)(uint32_t, Waits);
  int32_t (*clGetEventInfo)(Event, uint32_t, size_t, void*, size_t*);
  int32_t (*clGetEventProfilingInfo)(Event, uint32_t, size_t, void*, size_t*);
  int32_t (*clReleaseEvent)(Event);
  using Bytes = const unsigned char**;
  Program (*clCreateProgramWithBinary)(
      Context, uint32_t, const Device*, Sizes, Bytes, int32_t*, int32_t*);
  int32_t (*clBuildProgram)(Program, uint32_t, const Device*, const char*, void*, void*);

  // What kernels are made for: a context of devices of one kind, and how many queues they have.
  Context context = nullptr;
  Device device = nullptr;
  size_t queues = 0;
};
Driver& driver();

// Raises for a driver's number that is not success.
void check(int32_t code, const char* what);

// A kernel as a plan holds it. Arguments belong to a driver's kernel object, so each queue has one
// of its own.
struct Kernel {
  Program program;
  std::string name;
  size_t local = 1;  // work-items of a work-group
  size_t status_words = 0;
  std::vector<KernelObject> by_queue;

  KernelObject object(size_t queue);
};

}  // namespace tenon::opencl
