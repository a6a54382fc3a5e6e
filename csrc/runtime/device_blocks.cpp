#include "runtime/device_blocks.h"

#include <sys/mman.h>

#include <algorithm>

namespace tenon {

DeviceBlocks::~DeviceBlocks() {
  release_unused();
}

void* DeviceBlocks::take(size_t nbytes) {
  if (nbytes == 0)
    return nullptr;
  constexpr size_t kRounding = 4096;
  nbytes = (nbytes + kRounding - 1) / kRounding * kRounding;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& unused = unused_[nbytes];
  if (!unused.empty()) {
    // In the order of addresses, so that runs that take the same find the same; the highest first,
    // as Linux gives them out.
    const auto first = std::max_element(unused.begin(), unused.end());
    void* found = *first;
    unused.erase(first);
    return found;
  }
  void* made = make(nbytes);
  if (made == nullptr) {
    release_unused();
    made = make(nbytes);
  }
  if (made == nullptr)
    fail(
        ErrorKind::out_of_memory,
        library_->name(),
        " has no ",
        nbytes,
        " bytes left on device ",
        device_);
  return made;
}

void* DeviceBlocks::make(size_t nbytes) {
  const auto handle = library_->allocate(nbytes, device_);
  if (handle == 0)
    return nullptr;
  void* address = reinterpret_cast<void*>(handle);
  if (!library_->host_memory()) {
    address = mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      library_->release(handle, device_);
      return nullptr;
    }
  }
  blocks_[static_cast<const char*>(address)] = {nbytes, handle};
  return address;
}

void DeviceBlocks::give_back(void* block) {
  if (block == nullptr || !library_->is_here())
    return;
  const std::lock_guard<std::mutex> lock(mutex_);
  unused_[blocks_.at(static_cast<const char*>(block)).nbytes].push_back(block);
  if (holds_)
    held_.push_back(block);
}

DeviceBlocks::Hold::Hold(DeviceBlocks& blocks) : blocks_(blocks) {
  const std::lock_guard<std::mutex> lock(blocks.mutex_);
  blocks.holds_ = true;
}

DeviceBlocks::Hold::~Hold() {
  const std::lock_guard<std::mutex> lock(blocks_.mutex_);
  blocks_.holds_ = false;
  blocks_.held_.clear();
}

void DeviceBlocks::release_unused() {
  ++released_;
  for (auto& [nbytes, unused] : unused_) {
    std::erase_if(unused, [&](void* address) {
      if (std::find(held_.begin(), held_.end(), address) != held_.end())
        return false;
      const auto found = blocks_.find(static_cast<const char*>(address));
      library_->release(found->second.handle, device_);
      if (!library_->host_memory())
        munmap(address, nbytes);
      blocks_.erase(found);
      return true;
    });
  }
}

Place DeviceBlocks::place_of(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* wanted = static_cast<const char*>(address);
  const auto after = blocks_.upper_bound(wanted);
  if (after != blocks_.begin()) {
    const auto& [start, block] = *std::prev(after);
    const auto offset = static_cast<size_t>(wanted - start);
    if (offset < block.nbytes)
      return {block.handle, offset};
  }
  fail(ErrorKind::error, "an address that is not in the memory of ", library_->name());
}

}  // namespace tenon
