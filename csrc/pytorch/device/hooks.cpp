// What ATen asks an accelerator for without knowing it: availability, generators, pinned memory,
// growing a storage. Autograd refuses to run without it.

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <cstdlib>
#include <mutex>
#include <variant>

#include "device/allocator.h"
#include "device/blocks.h"
#include "device/fork.h"
#include "device/generator.h"
#include "device/ranges.h"
#include "device/storage.h"
#include "device/target.h"

namespace tenon {
namespace {

// Page-aligned host memory, which transfers read and write without a copy in between.
constexpr size_t kPage = 4096;

class PinnedAllocator final : public c10::Allocator {
 public:
  static PinnedAllocator& instance() {
    return OnlyOne<PinnedAllocator>::get();
  }

  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0)
      return {nullptr, c10::Device(c10::kCPU)};
    void* ptr = nullptr;
    TORCH_CHECK(
        posix_memalign(&ptr, kPage, round_up(nbytes, kPage)) == 0,
        "Could not allocate ",
        nbytes,
        " bytes of pinned host memory");
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.add(ptr, nbytes, {});
    return {ptr, ptr, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* dst, const void* src, size_t nbytes) const override {
    default_copy_data(dst, src, nbytes);
  }

  bool contains(const void* ptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.find(ptr).first != nullptr;
  }

 private:
  static void release(void* ptr) {
    {
      std::lock_guard<std::mutex> lock(instance().mutex_);
      instance().blocks_.remove(ptr);
    }
    std::free(ptr);
  }

  MutexAtFork<ForkOrder::pinned> mutex_;
  Ranges<std::monostate> blocks_;
};

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
    return PinnedAllocator::instance().contains(data);
  }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return &PinnedAllocator::instance();
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
