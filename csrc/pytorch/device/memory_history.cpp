#include "device/memory_history.h"

#include <atomic>
#include <ctime>
#include <deque>
#include <mutex>

#include "device/fork.h"
#include "device/target.h"

namespace tenon {

namespace {

std::atomic<bool> g_is_on{false}, g_was_on{false};

struct DeviceEvents {
  std::deque<MemoryEvent> events;
  int64_t first = 0;  // the number of the first one, among all that there were
};

struct History {
  MutexAtFork<ForkOrder::memory_history> mutex;
  MemoryHistorySettings settings;
  std::vector<DeviceEvents> devices;
  std::unordered_map<const Buffer*, Where> made;
  struct Allocated {
    Where where;
    c10::DeviceIndex device;
    int64_t event;  // the number of its `alloc`; -1: none is kept
  };
  std::unordered_map<uintptr_t, Allocated> allocated;

  DeviceEvents& of(c10::DeviceIndex device) {
    if (devices.size() <= static_cast<size_t>(device))
      devices.resize(device + 1);
    return devices[device];
  }
};

History& history() {
  return OnlyOne<History>::get();
}

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return int64_t{1000000} * time.tv_sec + time.tv_nsec / 1000;
}

}  // namespace

void set_memory_history(const MemoryHistorySettings& settings, bool clear) {
  auto& s = history();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.settings = settings;
  g_is_on = settings.on;
  if (settings.on)
    g_was_on = true;
  if (!settings.on) {
    s.made.clear();
    s.allocated.clear();
  }
  for (auto& device : s.devices) {
    const size_t most = clear || !settings.events ? 0 : settings.most;
    while (device.events.size() > most) {
      device.events.pop_front();
      ++device.first;
    }
  }
}

std::vector<std::vector<MemoryEvent>> memory_events() {
  auto& s = history();
  const std::lock_guard<std::mutex> lock(s.mutex);
  std::vector<std::vector<MemoryEvent>> found(device_count());
  for (size_t k = 0; k < std::min(found.size(), s.devices.size()); ++k)
    found[k] = {s.devices[k].events.begin(), s.devices[k].events.end()};
  return found;
}

std::unordered_map<uintptr_t, Where> allocated_where() {
  auto& s = history();
  const std::lock_guard<std::mutex> lock(s.mutex);
  std::unordered_map<uintptr_t, Where> found;
  for (const auto& [address, allocated] : s.allocated)
    found.emplace(address, allocated.where);
  return found;
}

void note_memory(c10::DeviceIndex device, MemoryAction action, const void* ptr, size_t nbytes) {
  if (!g_is_on.load(std::memory_order_relaxed))
    return;
  auto& s = history();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.settings.on)
    return;
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  auto& kept = s.of(device);
  int64_t number = -1;
  Where where;
  const auto allocated = s.allocated.find(address);
  if (action == MemoryAction::free_requested && allocated != s.allocated.end())
    where = allocated->second.where;
  if (s.settings.events && s.settings.most > 0) {
    if (kept.events.size() >= s.settings.most) {
      kept.events.pop_front();
      ++kept.first;
    }
    number = kept.first + static_cast<int64_t>(kept.events.size());
    kept.events.push_back({action, address, nbytes, now(), std::move(where)});
  }
  if (action == MemoryAction::alloc)
    s.allocated[address] = {nullptr, device, number};
  else if (action == MemoryAction::free_completed)
    s.allocated.erase(address);
}

void note_made(const Buffer& buffer) {
  if (!g_is_on.load(std::memory_order_relaxed))
    return;
  auto& s = history();
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (!s.settings.where)
      return;
  }
  auto where = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.made[&buffer] = std::move(where);
}

void note_memory_of(const Buffer& buffer, const void* ptr) {
  if (!g_is_on.load(std::memory_order_relaxed))
    return;
  auto& s = history();
  const std::lock_guard<std::mutex> lock(s.mutex);
  const auto made = s.made.find(&buffer);
  const auto allocated = s.allocated.find(reinterpret_cast<uintptr_t>(ptr));
  if (made == s.made.end() || allocated == s.allocated.end())
    return;
  auto& [where, device, number] = allocated->second;
  where = made->second;
  auto& kept = s.of(device);
  if (number >= kept.first)
    kept.events[number - kept.first].where = where;
}

void forget_made(const Buffer& buffer) {
  if (!g_was_on.load(std::memory_order_relaxed))
    return;
  auto& s = history();
  Where ended;  // after the lock
  const std::lock_guard<std::mutex> lock(s.mutex);
  const auto made = s.made.find(&buffer);
  if (made == s.made.end())
    return;
  ended = std::move(made->second);
  s.made.erase(made);
}

}  // namespace tenon
