#include "record/window.h"

namespace tenon {

size_t SlotTable::position(const void* block) const {
  // Blocks are multiples of 512 bytes.
  auto mixed = (reinterpret_cast<uintptr_t>(block) >> 9) * 0x9E3779B97F4A7C15ull;
  return (mixed >> 32) & (entries_.size() - 1);
}

int32_t SlotTable::find(const void* block) const {
  for (size_t i = position(block);; i = (i + 1) & (entries_.size() - 1)) {
    const auto& entry = entries_[i];
    if (entry.generation != generation_)
      return -1;
    if (entry.block == block)
      return entry.slot;
  }
}

void SlotTable::insert(const void* block, int32_t slot) {
  if (2 * ++count_ > entries_.size())
    grow();
  for (size_t i = position(block);; i = (i + 1) & (entries_.size() - 1)) {
    auto& entry = entries_[i];
    if (entry.generation == generation_ && entry.block != block)
      continue;
    entry = {block, slot, generation_};
    return;
  }
}

void SlotTable::erase(const void* block) {
  // The entry stays, without a slot: others may have been placed behind it.
  for (size_t i = position(block);; i = (i + 1) & (entries_.size() - 1)) {
    auto& entry = entries_[i];
    if (entry.generation != generation_)
      return;
    if (entry.block == block) {
      entry.slot = -1;
      return;
    }
  }
}

void SlotTable::clear() {
  count_ = 0;
  if (++generation_ == 0) {
    std::fill(entries_.begin(), entries_.end(), Entry());
    generation_ = 1;
  }
}

void SlotTable::grow() {
  std::vector<Entry> old(entries_.size() * 2);
  old.swap(entries_);
  const auto generation = generation_;
  for (const auto& entry : old) {
    if (entry.generation != generation || entry.slot < 0)
      continue;
    for (size_t i = position(entry.block);; i = (i + 1) & (entries_.size() - 1)) {
      if (entries_[i].generation == generation)
        continue;
      entries_[i] = entry;
      break;
    }
  }
}

int32_t Window::slot_of(void* block, size_t nbytes) {
  if (block != nullptr) {
    const auto found = table.find(block);
    if (found >= 0)
      return found;
  }
  const auto made = fresh_slot(block, nbytes);
  slots[made].fresh = false;
  return made;
}

int32_t Window::fresh_slot(void* block, size_t nbytes) {
  const auto made = static_cast<int32_t>(slots.size());
  slots.push_back({block, nbytes, /*fresh=*/true});
  if (block != nullptr)
    table.insert(block, made);
  return made;
}

void Window::structure(std::vector<int64_t>& words) const {
  words.clear();
  words.reserve(calls.size() + slots_of_calls.size() + slots.size());
  for (const auto& call : calls)
    words.push_back(call.entry->id);
  // Slots that no call uses (memory made and not yet written) have no place in the plan: numbers
  // are given by first use.
  std::vector<int32_t> numbers(slots.size(), -1);
  int32_t count = 0;
  for (const auto index : slots_of_calls) {
    if (numbers[index] < 0) {
      numbers[index] = count++;
      const auto& slot = slots[index];
      words.push_back((slot.fresh ? -1 : -2) - (slot.alive ? 2 : 0));
      words.push_back(static_cast<int64_t>(slot.nbytes));
    }
    words.push_back(numbers[index]);
  }
}

std::vector<int32_t> Window::used_slots() const {
  std::vector<int32_t> found;
  std::vector<bool> known(slots.size(), false);
  for (const auto index : slots_of_calls) {
    if (!known[index])
      found.push_back(index);
    known[index] = true;
  }
  return found;
}

void Window::clear() {
  calls.clear();
  slots_of_calls.clear();
  scalars.clear();
  slots.clear();
  kept.clear();
  kept_bytes = made_bytes = 0;
  table.clear();
}

}  // namespace tenon
