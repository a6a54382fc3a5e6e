#include "runtime/device_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>

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
  if (void* found = take_unused(nbytes))
    return found;
  void* made = make(nbytes);
  if (made == nullptr) {
    release_unused();
    made = make(nbytes);
  }
  if (made == nullptr)
    fail(
        ErrorKind::out_of_memory,
        "{} has no {} bytes left on device {}",
        library_->name(),
        nbytes,
        device_);
  return made;
}

std::vector<DeviceBlocks::Block>::iterator DeviceBlocks::block_at(const void* address) {
  return std::ranges::lower_bound(
      blocks_, static_cast<const char*>(address), std::greater<>(), &Block::start);
}

// In the order of addresses, so that runs that take the same find the same; the highest first, as
// Linux gives them out.
void* DeviceBlocks::take_unused(size_t nbytes) {
  auto found = unused_.end();
  for (auto one = unused_.begin(); one != unused_.end(); ++one) {
    if (block_at(*one)->nbytes == nbytes && (found == unused_.end() || *one > *found))
      found = one;
  }
  if (found == unused_.end())
    return nullptr;
  void* const taken = *found;
  unused_.erase(found);
  return taken;
}

void* DeviceBlocks::make(size_t nbytes) {
  const auto handle = library_->allocate(nbytes, device_);
  if (handle == 0)
    return nullptr;
  void* const address =
      mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    library_->release(handle, device_);
    return nullptr;
  }
  blocks_.insert(block_at(address), {static_cast<const char*>(address), nbytes, handle});
  return address;
}

void DeviceBlocks::give_back(void* block) {
  if (block == nullptr || !library_->is_here())
    return;
  const std::lock_guard<std::mutex> lock(mutex_);
  unused_.push_back(block);
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
  auto kept = unused_.begin();
  for (void* const address : unused_) {
    if (std::ranges::find(held_, address) != held_.end()) {
      *kept++ = address;
      continue;
    }
    const auto found = block_at(address);
    library_->release(found->handle, device_);
    munmap(address, found->nbytes);
    blocks_.erase(found);
  }
  unused_.erase(kept, unused_.end());
}

Place DeviceBlocks::place_of(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = block_at(address);
  if (found != blocks_.end()) {
    const auto offset = static_cast<size_t>(static_cast<const char*>(address) - found->start);
    if (offset < found->nbytes)
      return {found->handle, offset};
  }
  fail(ErrorKind::error, "an address that is not in the memory of {}", library_->name());
}

}  // namespace tenon
