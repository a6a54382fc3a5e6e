// What ATen asks an accelerator for without knowing it: availability, generators, pinned memory,
// growing a storage. Autograd refuses to run without it.

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "device/allocator.h"
#include "device/generator.h"
#include "device/pinned.h"
#include "device/storage.h"
#include "device/target.h"

namespace tenon {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return has_target();
  }

  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return has_target();
  }

  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    exchange_device(device);
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchange_device(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<GeneratorImpl>(check_index(device));
  }

  at::Device getDeviceFromPtr(void* data) const override {
    const auto device = device_allocator().device_of(data);
    TORCH_CHECK(device.has_value(), "The pointer ", data, " is not in the memory of tenon");
    return {kTenon, *device};
  }

  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), nbytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
}  // namespace tenon
