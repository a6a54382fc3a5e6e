// The OpenCL target behind include/tenon.h: memory and queues for each device of a platform's.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "driver.h"
#include "kernels.h"
#include "queue.h"
#include "tenon.h"

namespace tenon::opencl {
namespace {

constexpr uint64_t kReadWrite = 1 << 0;  // CL_MEM_READ_WRITE
constexpr int64_t kMostDevices = 64;

// At least as many devices as this, each with queues of its own, stand before those that there
// are.
size_t wanted_devices() {
  const char* text = std::getenv("TENON_DEVICES");
  if (text == nullptr || text[std::strspn(text, " ")] == '\0')
    return 1;
  char* end = nullptr;
  const auto count = std::strtol(text, &end, 10);
  if (end[std::strspn(end, " ")] != '\0' || count < 1 || count > kMostDevices)
    throw Failed(
        TENON_ERROR,
        std::string("TENON_DEVICES='") + text +
            "' is not valid: expected a whole number from 1 to 64");
  return static_cast<size_t>(count);
}

struct Opened {
  Opened()
      : count(std::max(driver.devices.size(), wanted_devices())),
        facts(driver.facts()),
        replay(replay_of(driver)),
        programs(driver, count) {
    for (size_t k = 0; k < count; ++k)
      queues.emplace_back(driver, device(k), k);
  }

  Device device(size_t number) const {
    return driver.devices[number % driver.devices.size()];
  }

  const Driver driver;
  const size_t count;
  const std::string facts;
  const Replay replay;
  Programs programs;
  std::deque<Queues> queues;  // by device; they stay where they are
  tenon_target_functions functions{};
};

Opened& of(void* context) {
  return *static_cast<Opened*>(context);
}
Queues& queues(void* context, int32_t device) {
  return of(context).queues.at(static_cast<size_t>(device));
}
// By its number.
Queue& queue(void* context, int32_t device, int32_t number = 0) {
  auto& found = queues(context, device);
  if (number != 0 && number != 1)
    throw Failed(TENON_OUT_OF_RANGE, "there is no queue " + std::to_string(number));
  return number == 0 ? found.kernels : found.copies;
}

int32_t told(tenon_status* status, tenon_code code, const char* text) {
  if (status != nullptr) {
    status->code = code;
    std::strncpy(status->text, text, sizeof(status->text) - 1);
    status->text[sizeof(status->text) - 1] = '\0';
  }
  return code;
}

// Nothing is thrown through an interface of C's.
template <class Work>
int32_t guarded(tenon_status* status, const Work& work) {
  try {
    work();
    return TENON_OK;
  } catch (const Failed& failed) {
    return told(status, failed.code, failed.what());
  } catch (const std::bad_alloc&) {
    return told(status, TENON_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return told(status, TENON_ERROR, error.what());
  }
}

// The same for what a queue is given.
template <class Work>
int32_t enqueued(void* context, int32_t device, tenon_status* status, const Work& work) {
  return guarded(status, [&] {
    const std::lock_guard<std::mutex> lock(queues(context, device).mutex);
    work();
  });
}

int32_t begin_recording(void* context, int32_t device, uint64_t* recording, tenon_status* status) {
  return enqueued(context, device, status, [&] {
    *recording =
        reinterpret_cast<uint64_t>(queue(context, device).record(of(context).replay).release());
  });
}

int32_t end_recording(void* context, int32_t device, uint64_t recording, tenon_status* status) {
  return enqueued(context, device, status, [&] {
    queue(context, device).end_recording(*reinterpret_cast<Recording*>(recording));
  });
}

int32_t replay(void* context, int32_t device, uint64_t recording, tenon_status* status) {
  return enqueued(context, device, status, [&] {
    queue(context, device).replay(*reinterpret_cast<const Recording*>(recording));
  });
}

void free_recording(void* context, int32_t device, uint64_t recording) {
  auto* const given = reinterpret_cast<Recording*>(recording);
  const std::lock_guard<std::mutex> lock(queues(context, device).mutex);
  queue(context, device).give_up(*given);
  delete given;
}

uint64_t total_memory(void* context, int32_t device) {
  const auto& opened = of(context);
  return opened.driver.number_of<uint64_t>(opened.device(device), kGlobalMemory);
}

int32_t allocate(void* context, int32_t, uint64_t nbytes, uint64_t* handle, tenon_status* status) {
  return guarded(status, [&] {
    const auto& driver = of(context).driver;
    Code code = 0;
    const size_t least = std::max<uint64_t>(nbytes, 1);
    auto* made = driver.clCreateBuffer(driver.context, kReadWrite, least, nullptr, &code);
    driver.check(code, "making a buffer");
    *handle = reinterpret_cast<uint64_t>(made);
  });
}

void release(void* context, int32_t, uint64_t handle) {
  of(context).driver.clReleaseMemObject(reinterpret_cast<Memory>(handle));
}

int32_t copy(
    void* context,
    int32_t device,
    const tenon_end* to,
    const tenon_end* from,
    uint64_t nbytes,
    tenon_status* status) {
  return enqueued(
      context, device, status, [&] { queue(context, device).copy(*to, *from, nbytes); });
}

int32_t launch(void* context, int32_t device, const tenon_launch* asked, tenon_status* status) {
  return enqueued(context, device, status, [&] { queue(context, device).launch(*asked); });
}

int32_t commit(void* context, int32_t device, uint64_t* ticket, tenon_status* status) {
  return enqueued(context, device, status, [&] { *ticket = queue(context, device).commit(); });
}

int32_t copy_on(
    void* context,
    int32_t device,
    int32_t number,
    const tenon_end* to,
    const tenon_end* from,
    uint64_t nbytes,
    tenon_status* status) {
  return enqueued(
      context, device, status, [&] { queue(context, device, number).copy(*to, *from, nbytes); });
}

int32_t commit_on(
    void* context, int32_t device, int32_t number, uint64_t* ticket, tenon_status* status) {
  return enqueued(
      context, device, status, [&] { *ticket = queue(context, device, number).commit(); });
}

int32_t after(
    void* context, int32_t device, int32_t number, uint64_t ticket, tenon_status* status) {
  return enqueued(context, device, status, [&] { queue(context, device, number).after(ticket); });
}

int32_t passed(void* context, int32_t device, uint64_t ticket) {
  return queues(context, device).tickets.passed(ticket) ? 1 : 0;
}

int32_t wait(void* context, int32_t device, uint64_t ticket, tenon_status* status) {
  return guarded(status, [&] { queues(context, device).tickets.wait(ticket); });
}

double seconds(void* context, int32_t device, uint64_t ticket) {
  return queues(context, device).tickets.seconds(ticket);
}

double started(void* context, int32_t device, uint64_t ticket) {
  return queues(context, device).tickets.started(ticket);
}

void forget(void* context, int32_t device, uint64_t ticket) {
  queues(context, device).tickets.forget(ticket);
}

int32_t load(
    void* context,
    const void* code,
    uint64_t nbytes,
    const char* entry,
    uint64_t* kernel,
    tenon_status* status) {
  return guarded(status, [&] {
    const std::string_view bytes(static_cast<const char*>(code), nbytes);
    *kernel = reinterpret_cast<uint64_t>(of(context).programs.load(bytes, entry).release());
  });
}

void unload(void*, uint64_t kernel) {
  delete reinterpret_cast<Kernel*>(kernel);
}

// Stays until the process has ended: others may use it while that ends.
Opened* opened = nullptr;
pid_t opened_by = 0;

// A driver that still computes while its library is unloaded crashes. A forked child has nothing
// that computes, and would wait for good.
void finish() {
  if (getpid() == opened_by)
    for (const auto& each : opened->queues) {
      each.kernels.finish();
      each.copies.finish();
    }
}

void open() {
  opened = new Opened();
  auto& f = opened->functions;
  f.size = sizeof(f);
  f.name = "opencl";
  f.facts = opened->facts.c_str();
  f.context = opened;
  f.devices = static_cast<int32_t>(opened->count);
  f.total_memory = total_memory;
  f.allocate = allocate;
  f.release = release;
  f.copy = copy;
  f.commit = commit;
  f.passed = passed;
  f.wait = wait;
  f.seconds = seconds;
  f.forget = forget;
  f.launch = launch;
  f.load = load;
  f.unload = unload;
  f.copy_queues = 1;
  f.copy_on = copy_on;
  f.commit_on = commit_on;
  f.after = after;
  f.started = started;
  if (opened->replay != Replay::none) {
    f.begin_recording = begin_recording;
    f.end_recording = end_recording;
    f.replay = replay;
    f.free_recording = free_recording;
  }
  opened_by = getpid();
  std::atexit(finish);  // it runs before what the driver has registered when it was opened
}

}  // namespace
}  // namespace tenon::opencl

const tenon_target_functions* tenon_target(uint32_t interface, tenon_status* status) {
  using namespace tenon::opencl;
  const auto code = guarded(status, [&] {
    if (interface != TENON_INTERFACE)
      throw Failed(
          TENON_UNSUPPORTED,
          "this library has version " + std::to_string(TENON_INTERFACE) +
              " of the interface, and version " + std::to_string(interface) + " is wanted");
    if (opened == nullptr)
      open();
  });
  return code == TENON_OK ? &opened->functions : nullptr;
}
