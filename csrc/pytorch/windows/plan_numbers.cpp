#include "windows/plan_numbers.h"

#include <cstring>

#include "device/host_allocator.h"
#include "device/queue.h"
#include "device/target.h"
#include "windows/plan_store.h"

namespace tenon {
namespace {

std::vector<int64_t> with_float32(std::vector<int64_t> numbers) {
  const auto count = numbers.size();
  numbers.resize(2 * count);
  for (size_t k = 0; k < count; ++k) {
    double number = 0;
    std::memcpy(&number, &numbers[k], sizeof(number));
    const auto narrow = static_cast<float>(number);
    std::memcpy(&numbers[count + k], &narrow, sizeof(narrow));
  }
  return numbers;
}

}  // namespace

PlanNumbers::PlanNumbers(const Window& window, c10::DeviceIndex device)
    : given_(window.numbers), count_(window.numbers.size()) {
  if (target().host_memory || count_ == 0)
    return;
  values_ = with_float32(given_);
  const auto nbytes = values_.size() * sizeof(int64_t);
  memory_ = device_block(nbytes, device);
  queue_of(device).copy(memory_.get(), values_.data(), nbytes, CopyKind::host_to_device);
}

void* PlanNumbers::address(int32_t input) {
  auto place = static_cast<size_t>(-1 - input);
  if (place >= kInFloat32)
    place += count_ - kInFloat32;
  if (!target().host_memory)
    return static_cast<int64_t*>(memory_.get()) + place;
  if (place < count_)
    return const_cast<int64_t*>(given_.data() + place);
  if (values_.empty())
    values_ = with_float32(given_);
  return values_.data() + place;
}

}  // namespace tenon
