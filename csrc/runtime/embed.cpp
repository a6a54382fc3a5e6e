// What a program that embeds the runtime calls: the second half of include/tenon.h.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/device_blocks.h"
#include "runtime/embed.h"
#include "runtime/plan_check.h"
#include "runtime/run.h"
#include "runtime/run_memory.h"
#include "runtime/shared_object.h"
#include "runtime/touched_memory.h"
#include "tenon.h"

using namespace tenon;

// A device: this processor, or one of a target's library.
struct tenon_device {
  std::shared_ptr<TargetLibrary> library;  // null: this processor
  std::shared_ptr<DeviceBlocks> blocks;
  std::unique_ptr<Queue> queue;
  // What one run enqueues stays together. Not of forks: a child has no device.
  std::mutex mutex;

  bool at_once() const {
    return library == nullptr || library->host_memory();
  }
};

struct tenon_plan {
  tenon_device* device;
  PlanData data;
};

namespace tenon {

int32_t tell(tenon_status* status, int32_t code, const char* text) {
  if (status == nullptr)
    return code;
  status->code = code;
  auto length = std::min(std::strlen(text), sizeof(status->text) - 1);
  // No character is cut in two: its further bytes begin with the bits 10.
  while (length > 0 && (text[length] & 0xc0) == 0x80)
    --length;
  std::memcpy(status->text, text, length);
  status->text[length] = '\0';
  return code;
}

int32_t tell_handled(tenon_status* status) {
  try {
    throw;
  } catch (const Error& error) {
    return tell(status, static_cast<int32_t>(error.kind), error.what());
  } catch (const std::bad_alloc&) {
    return tell(status, TENON_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return tell(status, TENON_ERROR, error.what());
  }
}

static int32_t (*g_tell)(tenon_status*) = &tell_handled;

void set_tell(int32_t (*tell)(tenon_status*)) {
  g_tell = tell;
}

int32_t tell_any(tenon_status* status) {
  return g_tell(status);
}

}  // namespace tenon

namespace {

constexpr uint32_t kGrown = 3;  // times that the interface has grown

// Finds the plan's kernels in files below a folder.
void load_kernels(PlanData& plan, const tenon_device& device, const std::string& folder) {
  std::vector<KernelFunction> found;
  for (const auto& kernel : plan.kernels) {
    const auto path = folder + "/" + kernel.object;
    const auto bytes = read_whole(path);
    if (!bytes)
      fail(ErrorKind::error, "there is no file of kernels at ", path);
    check_data(checksum(*bytes) == kernel.checksum, path, " is another file than the plan's");
    if (device.library != nullptr) {
      auto loaded = device.library->load(*bytes, kernel.symbol);
      found.push_back(reinterpret_cast<KernelFunction>(loaded->address()));
      plan.owners.push_back(std::move(loaded));
    } else {
      // By its path the loader would find the file that was there before, while that is open.
      std::shared_ptr<SharedObject> object;
      for (size_t k = 0; k < found.size() && object == nullptr; ++k) {
        if (plan.kernels[k].object == kernel.object)
          object = std::static_pointer_cast<SharedObject>(plan.owners[k]);
      }
      if (object == nullptr)
        object = SharedObject::of_bytes(*bytes);
      found.push_back(reinterpret_cast<KernelFunction>(object->symbol(kernel.symbol)));
      plan.owners.push_back(std::move(object));
    }
  }
  for (auto& step : plan.steps) {
    auto* kernel = std::get_if<KernelStep>(&step.work);
    if (kernel == nullptr)
      fail(
          ErrorKind::unsupported,
          "the plan calls ",
          std::get<CallStep>(step.work).counted,
          ", which runs by PyTorch alone");
    kernel->function = found.at(kernel->kernel);
  }
}

// Memory for one run.
class EmbeddedRun final : public RunHost {
 public:
  EmbeddedRun(const PlanData& plan, tenon_device& device)
      : device_(device), slots_(plan.slots.size()) {}
  ~EmbeddedRun() override {
    for (void* slot : slots_)
      free(slot);
    free(arena_);
  }
  EmbeddedRun(const EmbeddedRun&) = delete;
  EmbeddedRun& operator=(const EmbeddedRun&) = delete;

  void* arena(size_t nbytes) override {
    return arena_ = make(nbytes);
  }
  void* allocate(size_t slot, size_t nbytes) override {
    if (given != nullptr && (*given)[slot] != nullptr)
      return (*given)[slot];
    free(slots_[slot]);
    return slots_[slot] = make(nbytes);
  }
  void release(size_t slot) override {
    free(slots_[slot]);
    slots_[slot] = nullptr;
  }
  void wait(const char*, bool raises) override {
    device_.queue->finish(raises);
  }
  void drain() noexcept override {
    device_.queue->drain();
  }

  // By slot: the caller's memory.
  const std::vector<void*>* given = nullptr;

 private:
  void* make(size_t nbytes) {
    return device_.blocks != nullptr ? device_.blocks->take(nbytes) : make_memory(nbytes);
  }
  void free(void* memory) {
    if (device_.blocks != nullptr)
      device_.blocks->give_back(memory);
    else
      std::free(memory);
  }

  tenon_device& device_;
  void* arena_ = nullptr;
  std::vector<void*> slots_;
};

// On memory that the host reaches.
void run_at_once(tenon_plan& plan, const void* const* inputs, void* const* outputs) {
  EmbeddedRun host(plan.data, *plan.device);
  std::vector<void*> given(plan.data.slots.size());
  for (size_t k = 0; k < plan.data.outputs.size(); ++k)
    given[plan.data.outputs[k]] = outputs[k];
  host.given = &given;
  Run run(plan.data, *plan.device->queue, /*at_once=*/true, host);
  for (size_t k = 0; k < plan.data.inputs.size(); ++k)
    run.place(plan.data.inputs[k], const_cast<void*>(inputs[k]));
  run.execute();
  raise_first(run.failures()());
}

// On copies in the device's memory.
void run_on_device(tenon_plan& plan, const void* const* inputs, void* const* outputs) {
  auto& device = *plan.device;
  device.library->check_is_here();
  const auto& data = plan.data;
  const std::lock_guard<std::mutex> lock(device.mutex);
  const DeviceBlocks::Hold hold(*device.blocks);
  EmbeddedRun host(data, device);
  std::vector<void*> given(data.slots.size());
  for (const auto slot : data.outputs)
    given[slot] = host.allocate(slot, data.slots[slot].number);
  host.given = &given;
  Run run(data, *device.queue, /*at_once=*/false, host);
  try {
    for (size_t k = 0; k < data.inputs.size(); ++k) {
      const auto slot = data.inputs[k];
      const auto nbytes = data.slots[slot].nbytes;
      run.place(slot, host.allocate(slot, nbytes));
      if (nbytes > 0)
        device.queue->copy(run.address(slot), inputs[k], nbytes, CopyKind::host_to_device);
    }
    run.execute();
    for (size_t k = 0; k < data.outputs.size(); ++k) {
      const auto slot = data.outputs[k];
      if (data.slots[slot].number > 0)
        device.queue->copy(
            outputs[k], given[slot], data.slots[slot].number, CopyKind::device_to_host);
    }
  } catch (...) {
    device.queue->drain();
    throw;
  }
  device.queue->finish(/*raises=*/true);
  raise_first(run.failures()());
}

}  // namespace

extern "C" {

uint32_t tenon_version(void) {
  return TENON_INTERFACE * 1000 + kGrown;
}

int32_t tenon_open_device(
    const char* library, int32_t device, tenon_device** found, tenon_status* status) {
  return told(status, [&] {
    given(found, "found");
    auto made = std::make_unique<tenon_device>();
    made->library = open_target(
        library != nullptr ? std::optional<std::string>(library) : std::nullopt, device);
    if (made->library != nullptr)
      made->blocks = std::make_shared<DeviceBlocks>(made->library, device);
    made->queue = made->at_once()
                      ? host_queue()
                      : made->library->queue(device, [blocks = made->blocks](const void* address) {
                          return blocks->place_of(address);
                        });
    *found = made.release();
  });
}

void tenon_close_device(tenon_device* device) {
  delete device;
}

int32_t tenon_read_plan(
    tenon_device* device,
    const void* bytes,
    size_t nbytes,
    const char* folder,
    tenon_plan** found,
    tenon_status* status) {
  return told(status, [&] {
    given(device, "device");
    given(found, "found");
    given(folder, "folder");
    if (nbytes > 0)
      given(static_cast<const char*>(bytes), "bytes");
    auto read = read_plan({static_cast<const char*>(bytes), nbytes});
    check_plan(read, /*calls=*/0);
    if (!read.numbers.empty())
      fail(ErrorKind::unsupported, "a plan for any sizes: give it sizes before it is written");
    std::vector<int64_t> inputs, outputs;
    for (const auto slot : read.plan.inputs)
      inputs.push_back(static_cast<int64_t>(read.plan.slots[slot].nbytes));
    for (const auto slot : read.plan.outputs)
      outputs.push_back(static_cast<int64_t>(read.plan.slots[slot].number));
    check_data(check_memory(read.plan, inputs, outputs), "a tensor lies beyond its memory");
    load_kernels(read.plan, *device, folder);
    *found = new tenon_plan{device, std::move(read.plan)};
  });
}

void tenon_free_plan(tenon_plan* plan) {
  delete plan;
}

size_t tenon_input_count(const tenon_plan* plan) {
  return plan != nullptr ? plan->data.inputs.size() : 0;
}

size_t tenon_output_count(const tenon_plan* plan) {
  return plan != nullptr ? plan->data.outputs.size() : 0;
}

uint64_t tenon_input_bytes(const tenon_plan* plan, size_t input) {
  return input < tenon_input_count(plan) ? plan->data.slots[plan->data.inputs[input]].nbytes : 0;
}

uint64_t tenon_output_bytes(const tenon_plan* plan, size_t output) {
  return output < tenon_output_count(plan) ? plan->data.slots[plan->data.outputs[output]].number
                                           : 0;
}

int32_t tenon_run_plan(
    tenon_plan* plan, const void* const* inputs, void* const* outputs, tenon_status* status) {
  return told(status, [&] {
    const auto& data = given(plan, "plan").data;
    if (!data.inputs.empty())
      given(inputs, "inputs");
    if (!data.outputs.empty())
      given(outputs, "outputs");
    TouchedMemory touched;
    for (size_t k = 0; k < data.inputs.size(); ++k) {
      const auto nbytes = data.slots[data.inputs[k]].nbytes;
      if (inputs[k] == nullptr && nbytes > 0)
        fail(ErrorKind::error, "input ", k, " is null, and takes ", nbytes, " bytes");
      touched.add(inputs[k], nbytes);
    }
    for (size_t k = 0; k < data.outputs.size(); ++k) {
      const auto nbytes = data.slots[data.outputs[k]].number;
      if (outputs[k] == nullptr && nbytes > 0)
        fail(ErrorKind::error, "output ", k, " is null, and takes ", nbytes, " bytes");
      if (touched.overlaps(outputs[k], nbytes))
        fail(ErrorKind::error, "output ", k, " overlaps an input or another output");
      touched.add(outputs[k], nbytes);
    }
    if (plan->device->at_once())
      run_at_once(*plan, inputs, outputs);
    else
      run_on_device(*plan, inputs, outputs);
  });
}

}  // extern "C"
