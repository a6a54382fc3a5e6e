// What snapshots of device memory have (torch_tenon/api/memory_snapshots.py), and what the
// conformance suite does to memory.

#include <pybind11/stl.h>

#include "device/allocator.h"
#include "device/blocks.h"
#include "device/interpreter.h"
#include "device/memory_history.h"
#include "device/pending.h"
#include "python/registration.h"

namespace py = pybind11;

namespace tenon {
namespace {

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

// Segments of each device: tuples (address, bytes, blocks), a block being (address, bytes, bytes
// that were asked for; 0: it is free). Lines of what is allocated, by address. Events of each
// device, if wanted: tuples (action, address, bytes, time, lines).
py::tuple memory_state(bool with_events) {
  py::list segments;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    py::list rows;
    for (const auto& segment : device_allocator().segments(device)) {
      py::list blocks;
      for (const auto& block : segment.blocks)
        blocks.append(py::make_tuple(block.address, block.nbytes, block.requested));
      rows.append(py::make_tuple(segment.address, segment.nbytes, std::move(blocks)));
    }
    segments.append(std::move(rows));
  }
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
  py::dict lines;
  for (const auto& [address, traceback] : where)
    lines[py::int_(address)] = frames.of(traceback);
  py::list all_events;
  for (const auto& of_device : events) {
    py::list rows;
    for (const auto& [action, address, nbytes, time, traceback] : of_device)
      rows.append(
          py::make_tuple(static_cast<int>(action), address, nbytes, time, frames.of(traceback)));
    all_events.append(std::move(rows));
  }
  return py::make_tuple(std::move(segments), std::move(lines), std::move(all_events));
}

// Fills the memory of a device that is free with bytes of all ones: NaN in each floating-point
// dtype. Else memory that is handed out again would hold an earlier result. A kernel that writes
// nothing could pass that off as its own. Nobody else may use the device meanwhile.
void fill_free_memory(c10::DeviceIndex device) {
  static const std::vector<char> ones(kSmallSegment, static_cast<char>(0xFF));
  commit(check_index(device), CommitReason::request);
  wait_until_idle(device);
  const auto fill = [&](uintptr_t start, uintptr_t end) {
    while (start < end) {
      const auto nbytes = std::min<size_t>(end - start, ones.size());
      copy_bytes(
          reinterpret_cast<void*>(start), ones.data(), nbytes, CopyKind::host_to_device, device);
      start += nbytes;
    }
  };
  for (const auto& segment : device_allocator().segments(device)) {
    uintptr_t start = segment.address, end = start;
    for (const auto& block : segment.blocks) {
      if (block.requested != 0) {
        fill(start, end);
        start = block.address + block.nbytes;
      }
      end = block.address + block.nbytes;
    }
    fill(start, end);
  }
}

const RegisterBindings memory_bindings([](py::module_& m) {
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
      "memory_state",
      &memory_state,
      py::arg("events"),
      "Segments, lines of what is allocated and, if wanted, what the allocator did.");
  m.def(
      "fill_free_memory",
      &fill_free_memory,
      py::call_guard<ReleasedInterpreter>(),
      "Fills what is free with bytes of all ones, once the device is idle.");
});

}  // namespace
}  // namespace tenon
