#include "record/window.h"

namespace tenon {

int32_t Window::find(const void* block) const {
  const auto found = by_block.find(block);
  return found != by_block.end() ? found->second : -1;
}

int32_t Window::slot_of(void* block, size_t nbytes) {
  const auto found = block != nullptr ? find(block) : -1;
  if (found >= 0)
    return found;
  const auto made = fresh_slot(block, nbytes);
  slots[made].fresh = false;
  return made;
}

int32_t Window::fresh_slot(void* block, size_t nbytes) {
  const auto made = static_cast<int32_t>(slots.size());
  slots.push_back({block, nbytes, /*fresh=*/true});
  if (block != nullptr)
    by_block[block] = made;
  return made;
}

std::vector<int32_t> Window::structure(std::vector<int64_t>& words) const {
  words.clear();
  words.reserve(calls.size() + slots_of_calls.size() + 2 * slots.size());
  for (const auto& call : calls)
    words.push_back(call.entry->id);
  std::vector<int32_t> order, numbers(slots.size(), -1);
  for (const auto index : slots_of_calls) {
    if (numbers[index] < 0) {
      numbers[index] = static_cast<int32_t>(order.size());
      order.push_back(index);
      const auto& slot = slots[index];
      words.push_back((slot.fresh ? -1 : -2) - (slot.alive ? 2 : 0));
      words.push_back(static_cast<int64_t>(slot.nbytes));
    }
    words.push_back(numbers[index]);
  }
  return order;
}

void Window::clear() {
  calls.clear();
  slots_of_calls.clear();
  scalars.clear();
  slots.clear();
  kept.clear();
  large.clear();
  kept_bytes = made_bytes = 0;
  by_block.clear();
}

}  // namespace tenon
