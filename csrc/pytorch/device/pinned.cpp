#include "device/pinned.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <mutex>
#include <variant>

#include "device/blocks.h"
#include "device/fork.h"
#include "device/ranges.h"

namespace tenon {
namespace {

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

}  // namespace

c10::Allocator* pinned_allocator() {
  return &PinnedAllocator::instance();
}

bool is_pinned(const void* ptr) {
  return PinnedAllocator::instance().contains(ptr);
}

}  // namespace tenon
