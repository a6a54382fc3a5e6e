// Snapshots of device memory, in the form that PyTorch's viewer of them reads.

#include <pybind11/stl.h>

#include "device/allocator.h"
#include "device/blocks.h"
#include "device/memory_history.h"
#include "python/registration.h"

namespace py = pybind11;

namespace tenon {
namespace {

const char* name_of(MemoryAction action) {
  switch (action) {
    case MemoryAction::alloc:
      return "alloc";
    case MemoryAction::free_requested:
      return "free_requested";
    case MemoryAction::free_completed:
      return "free_completed";
    case MemoryAction::segment_alloc:
      return "segment_alloc";
    case MemoryAction::segment_free:
      return "segment_free";
    case MemoryAction::oom:
      return "oom";
    case MemoryAction::snapshot:
      return "snapshot";
  }
  return "";
}

// The frames of tracebacks, each frame one object of Python however often it occurs.
class Frames {
 public:
  void add(const Where& where) {
    if (where != nullptr && lists_.emplace(where.get(), py::list()).second)
      tracebacks_.push_back(where.get());
  }

  void symbolize() {
    const auto found = torch::symbolize(tracebacks_);
    std::vector<py::object> frames;
    for (const auto& frame : found.all_frames) {
      py::dict made;
      made["filename"] = frame.filename;
      made["name"] = frame.funcname;
      made["line"] = frame.lineno;
      frames.push_back(std::move(made));
    }
    for (size_t k = 0; k < tracebacks_.size(); ++k) {
      for (const auto number : found.tracebacks.at(k))
        lists_.at(tracebacks_[k]).append(frames.at(number));
    }
  }

  py::list of(const Where& where) const {
    return where != nullptr ? lists_.at(where.get()) : py::list();
  }

 private:
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::unordered_map<torch::CapturedTraceback*, py::list> lists_;
};

py::dict segment_of(
    const SegmentState& segment,
    c10::DeviceIndex device,
    const std::unordered_map<uintptr_t, Where>& where,
    const Frames& frames) {
  py::list blocks;
  size_t allocated = 0, requested = 0;
  for (const auto& block : segment.blocks) {
    const auto found = where.find(block.address);
    py::dict made;
    made["address"] = block.address;
    made["size"] = block.nbytes;
    made["requested_size"] = block.requested;
    made["state"] = block.requested != 0 ? "active_allocated" : "inactive";
    made["frames"] =
        block.requested != 0 && found != where.end() ? frames.of(found->second) : py::list();
    blocks.append(std::move(made));
    if (block.requested != 0)
      allocated += block.nbytes;
    requested += block.requested;
  }
  py::dict made;
  made["device"] = device;
  made["address"] = segment.address;
  made["total_size"] = segment.nbytes;
  made["allocated_size"] = allocated;
  made["active_size"] = allocated;
  made["requested_size"] = requested;
  made["stream"] = 0;
  made["segment_type"] = segment.nbytes <= kSmallSegment ? "small" : "large";
  made["segment_pool_id"] = py::make_tuple(0, 0);
  made["is_expandable"] = false;
  made["frames"] = py::list();
  made["blocks"] = std::move(blocks);
  return made;
}

py::dict event_of(const MemoryEvent& event, const Frames& frames) {
  py::dict made;
  made["action"] = name_of(event.action);
  made[event.action == MemoryAction::oom ? "device_free" : "addr"] = event.address;
  made["size"] = event.nbytes;
  made["stream"] = 0;
  made["time_us"] = event.time;
  made["frames"] = frames.of(event.where);
  return made;
}

py::dict snapshot(bool with_events) {
  std::vector<std::vector<SegmentState>> segments;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device)
    segments.push_back(device_allocator().segments(device));
  const auto where = allocated_where();
  const auto events = with_events ? memory_events() : std::vector<std::vector<MemoryEvent>>();
  Frames frames;
  for (const auto& entry : where)
    frames.add(entry.second);
  for (const auto& of_device : events) {
    for (const auto& event : of_device)
      frames.add(event.where);
  }
  frames.symbolize();
  py::list all_segments, traces;
  for (size_t device = 0; device < segments.size(); ++device) {
    for (const auto& segment : segments[device])
      all_segments.append(
          segment_of(segment, static_cast<c10::DeviceIndex>(device), where, frames));
  }
  for (const auto& of_device : events) {
    py::list trace;
    for (const auto& event : of_device)
      trace.append(event_of(event, frames));
    traces.append(std::move(trace));
  }
  py::dict made;
  made["segments"] = std::move(all_segments);
  made["device_traces"] = std::move(traces);
  made["allocator_settings"] = py::dict();
  made["external_annotations"] = py::list();
  return made;
}

const RegisterBindings bindings([](py::module_& m) {
  m.def(
      "set_memory_history",
      [](bool on, bool events, bool where, size_t most, bool clear) {
        set_memory_history({on, events, where, most}, clear);
      },
      py::arg("on"),
      py::arg("events"),
      py::arg("where"),
      py::arg("most"),
      py::arg("clear"),
      "What is noted of the allocator's work from now on.");
  m.def(
      "memory_snapshot",
      &snapshot,
      py::arg("events"),
      "Segments, their blocks and, if wanted, what the allocator did, as PyTorch's viewer reads "
      "them.");
});

}  // namespace
}  // namespace tenon
