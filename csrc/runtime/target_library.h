// A target in a shared library of its own: include/tenon.h has its interface.
#pragma once

#include <mutex>

#include "runtime/plan.h"
#include "tenon.h"

namespace tenon {

class LibraryQueue;
class LibraryCommit;
struct LibraryTicket;

// What all share that enqueue on a device of a library, in whatever copy of this runtime: the
// device's core and libtenon_rt may both be in a process. It changes with `kTurnsLayout` alone.
struct LibraryTurns {
  // One of a device's queues.
  struct Line {
    void* open_by = nullptr;  // whose work is enqueued there and not committed, ...
    int32_t (*commit_open)(void* open_by, tenon_status* status) = nullptr;  // ... and commits it
    uint64_t last = UINT64_MAX;  // ticket; that one is none
    bool is_lost = false;  // it does not start what is enqueued there, which would run too late
  };
  std::mutex mutex;  // of the library's functions that enqueue; not of forks: a child has none
  Line* lines = nullptr;
};
constexpr uint32_t kTurnsLayout = 1;

// A library that is open in this process. It lasts as long as that.
struct SharedTarget {
  void* library;  // as `dlopen` gives it
  const tenon_target_functions* functions;
  LibraryTurns* devices;
  const SharedTarget* next;
};

// An opened library. It stays open until the process ends, and who opens it again has the same.
class TargetLibrary : public std::enable_shared_from_this<TargetLibrary> {
 public:
  // Raises where there is no such library, or none of this interface, or it does not open.
  static std::shared_ptr<TargetLibrary> open(const std::string& path);
  TargetLibrary(const TargetLibrary&) = delete;
  TargetLibrary& operator=(const TargetLibrary&) = delete;

  const std::string& name() const {
    return name_;
  }
  std::string facts() const {
    return table_.facts != nullptr ? table_.facts : "";
  }
  int32_t devices() const {
    return table_.devices;
  }
  bool host_memory() const {
    return table_.host_memory != 0;
  }
  bool runs_kernels() const {
    return table_.launch != nullptr;
  }
  bool runs_calls() const {
    return table_.call != nullptr;
  }
  // Of each device, beside the queue of kernels.
  int32_t copy_queues() const {
    return table_.copy_queues;
  }

  // Whether this process opened it. The child of a fork has none of a driver's threads, and may
  // find any of its locks taken.
  bool is_here() const;
  // Raises where it did not.
  void check_is_here() const;

  uint64_t total_memory(int32_t device) const;
  // A handle; 0: the device has no such block left. Raises what else fails.
  uintptr_t allocate(size_t nbytes, int32_t device) const;
  void release(uintptr_t handle, int32_t device) const;

  void let_go(RecordedLaunches& recording) const;

  // A device's queue, for who gives the places of its addresses. Where it has several, copies run
  // beside kernels.
  using PlaceOf = std::function<Place(const void*)>;
  std::unique_ptr<Queue> queue(int32_t device, PlaceOf place_of);

  // A kernel of a binary or a source; unloaded when the last owner goes. One that was loaded
  // before, of the same bytes, is the same. Raises where the target does not take it.
  class Kernel : public KernelOwner {
   public:
    Kernel(std::shared_ptr<TargetLibrary> library, uint64_t number)
        : library_(std::move(library)), number_(number) {}
    ~Kernel() override;
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;
    size_t nbytes() const override {
      return 0;  // nobody says
    }
    // What a launch takes it by.
    uintptr_t address() const {
      return static_cast<uintptr_t>(number_);
    }

   private:
    const std::shared_ptr<TargetLibrary> library_;
    const uint64_t number_;
  };
  std::shared_ptr<Kernel> load(std::string_view code, const std::string& entry);

 private:
  TargetLibrary(const tenon_target_functions& table, const SharedTarget& shared);
  friend class LibraryQueue;

  // A device, and the last ticket of its kernels that this copy of the runtime has, by its turns.
  struct Device {
    LibraryTurns* turns = nullptr;
    std::shared_ptr<const LibraryTicket> last{};
  };
  // A kernel that nobody needs, once these have passed.
  struct Leaving {
    uint64_t kernel;
    std::vector<std::shared_ptr<const LibraryTicket>> after;
  };
  void unload(uint64_t kernel);
  void unload_passed();

  const tenon_target_functions table_;
  const std::string name_;
  const uint32_t process_;               // that opened it
  void* handle_ = nullptr;               // as `dlopen` gives it
  std::shared_ptr<TargetLibrary> next_;  // of those that are open
  Device* const devices_;                // as long as the process
  std::vector<Leaving> leaving_;
  std::mutex mutex_;  // of `leaving_` and `loaded_`; not of forks: a child has no device
  struct Loaded {
    uint64_t checksum;  // of its code
    std::string entry;
    std::weak_ptr<Kernel> kernel;
  };
  std::vector<Loaded> loaded_;
};

// The library at a path, which has that device; null without a path, for this processor.
std::shared_ptr<TargetLibrary> open_target(const std::optional<std::string>& path, int32_t device);

// The error that a function of a target told.
Error error_of(const tenon_status& status, const std::string& name);
// Raises it, where the function returned a code that is not TENON_OK.
void check_status(int32_t code, tenon_status& status, const std::string& name);

}  // namespace tenon

// The library at a path as all copies of the runtime share it, by the one that opens it first;
// null: the status says why. `layout`: the caller's `kTurnsLayout`.
extern "C" TENON_EXPORT const tenon::SharedTarget* tenon_share_target(
    const char* path, uint32_t layout, tenon_status* status);
