// What a program that embeds the runtime calls: the second half of include/tenon.h.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/embed.h"
#include "runtime/plan_check.h"
#include "runtime/program_runner.h"
#include "runtime/shared_object.h"
#include "runtime/touched_memory.h"
#include "tenon.h"

using namespace tenon;

// A device: this processor, or one of a target's library.
struct tenon_device {
  std::shared_ptr<TargetLibrary> library;  // null: this processor
  std::unique_ptr<ProgramRunner> runner;
};

// A plan by itself runs as that of a method which passes on its inputs and outputs.
struct tenon_plan {
  tenon_device* device = nullptr;
  Method method;
  MethodPlan plan;
};

namespace tenon {

void check_given(const void* pointer, const char* name) {
  if (pointer == nullptr)
    fail(ErrorKind::error, "the argument '{}' is null", name);
}

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

constexpr uint32_t kGrown = 5;  // times that the interface has grown

// Finds the plan's kernels in files below a folder.
void load_kernels(PlanData& plan, const tenon_device& device, const std::string& folder) {
  const auto count = plan.kernels.size();
  std::vector<KernelFunction> found(count);
  plan.owners = std::vector<std::shared_ptr<KernelOwner>>(count);
  for (size_t k = 0; k < count; ++k) {
    const auto& kernel = plan.kernels[k];
    const auto path = text_of("{}/{}", folder, kernel.object);
    const auto bytes = read_whole(path);
    if (!bytes)
      fail(ErrorKind::error, "there is no file of kernels at {}", path);
    check_data(checksum(*bytes) == kernel.checksum, "{} is another file than the plan's", path);
    if (device.library != nullptr) {
      auto loaded = device.library->load(*bytes, kernel.symbol);
      found[k] = reinterpret_cast<KernelFunction>(loaded->address());
      plan.owners[k] = std::move(loaded);
    } else {
      // By its path the loader would find the file that was there before, while that is open.
      std::shared_ptr<SharedObject> object;
      for (size_t j = 0; j < k && object == nullptr; ++j) {
        if (plan.kernels[j].object == kernel.object)
          object = std::static_pointer_cast<SharedObject>(plan.owners[j]);
      }
      if (object == nullptr)
        object = SharedObject::of_bytes(*bytes);
      found[k] = reinterpret_cast<KernelFunction>(object->symbol(kernel.symbol));
      plan.owners[k] = std::move(object);
    }
  }
  for (auto& step : plan.steps) {
    auto* kernel = std::get_if<KernelStep>(&step.work);
    if (kernel == nullptr)
      fail(
          ErrorKind::unsupported,
          "the plan calls {}, which runs by PyTorch alone",
          std::get_if<CallStep>(&step.work)->counted);
    kernel->function = found[kernel->kernel];
  }
}

// The run of a method that passes on the plan's inputs and outputs. Raises where a tensor lies
// beyond these.
void pass_on(tenon_plan& made) {
  auto& [device, method, plan] = made;
  plan.method = &method;
  const auto& slots = plan.data.slots;
  const auto &in = plan.data.inputs, &out = plan.data.outputs;
  std::vector<int64_t> inputs(in.size()), outputs(out.size());
  method.plan_inputs = std::vector<Source>(in.size());
  method.plan_outputs = std::vector<size_t>(out.size());
  plan.inputs = std::vector<TensorLayout>(in.size());
  plan.outputs = std::vector<TensorLayout>(out.size());
  for (size_t k = 0; k < in.size(); ++k) {
    method.plan_inputs[k].number = k;
    plan.inputs[k].nbytes = slots[in[k]].nbytes;
    inputs[k] = static_cast<int64_t>(plan.inputs[k].nbytes);
  }
  for (size_t k = 0; k < out.size(); ++k) {
    method.plan_outputs[k] = k;
    plan.outputs[k].nbytes = slots[out[k]].number;
    outputs[k] = static_cast<int64_t>(plan.outputs[k].nbytes);
  }
  check_data(check_memory(plan.data, inputs, outputs), "a tensor lies beyond its memory");
  plan.placement = place_blocks(plan.data);
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
    made->runner = runner_for(made->library, device, /*commit_each=*/false);
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
    auto made = std::make_unique<tenon_plan>();
    made->device = device;
    auto& plan = made->plan.data;
    std::vector<SizedNumber> numbers;
    read_plan({static_cast<const char*>(bytes), nbytes}, plan, numbers);
    check_plan(plan, numbers, /*calls=*/0);
    if (!numbers.empty())
      fail(ErrorKind::unsupported, "a plan for any sizes: give it sizes before it is written");
    pass_on(*made);
    load_kernels(plan, *device, folder);
    *found = made.release();
  });
}

void tenon_free_plan(tenon_plan* plan) {
  delete plan;
}

size_t tenon_input_count(const tenon_plan* plan) {
  return plan != nullptr ? plan->plan.data.inputs.size() : 0;
}

size_t tenon_output_count(const tenon_plan* plan) {
  return plan != nullptr ? plan->plan.data.outputs.size() : 0;
}

uint64_t tenon_input_bytes(const tenon_plan* plan, size_t input) {
  return input < tenon_input_count(plan)
             ? plan->plan.data.slots[plan->plan.data.inputs[input]].nbytes
             : 0;
}

uint64_t tenon_output_bytes(const tenon_plan* plan, size_t output) {
  return output < tenon_output_count(plan)
             ? plan->plan.data.slots[plan->plan.data.outputs[output]].number
             : 0;
}

int32_t tenon_run_plan(
    tenon_plan* plan, const void* const* inputs, void* const* outputs, tenon_status* status) {
  return told(status, [&] {
    const auto& data = given(plan, "plan").plan.data;
    if (!data.inputs.empty())
      given(inputs, "inputs");
    if (!data.outputs.empty())
      given(outputs, "outputs");
    TouchedMemory touched;
    for (size_t k = 0; k < data.inputs.size(); ++k) {
      const auto nbytes = data.slots[data.inputs[k]].nbytes;
      if (inputs[k] == nullptr && nbytes > 0)
        fail(ErrorKind::error, "input {} is null, and takes {} bytes", k, nbytes);
      touched.add(inputs[k], nbytes);
    }
    for (size_t k = 0; k < data.outputs.size(); ++k) {
      const auto nbytes = data.slots[data.outputs[k]].number;
      if (outputs[k] == nullptr && nbytes > 0)
        fail(ErrorKind::error, "output {} is null, and takes {} bytes", k, nbytes);
      if (touched.overlaps(outputs[k], nbytes))
        fail(ErrorKind::error, "output {} overlaps an input or another output", k);
      touched.add(outputs[k], nbytes);
    }
    plan->device->runner->run(
        plan->plan, {inputs, data.inputs.size()}, {outputs, data.outputs.size()});
  });
}

}  // extern "C"
