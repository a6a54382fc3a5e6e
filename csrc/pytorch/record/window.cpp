#include "record/window.h"

namespace tenon {

int32_t Window::find(const Buffer& buffer) const {
  for (const auto& use : buffer.uses) {
    if (use.window == this)
      return use.slot;
  }
  return -1;
}

int32_t Window::slot_of(Buffer* buffer, size_t nbytes) {
  if (buffer != nullptr) {
    const auto found = find(*buffer);
    if (found >= 0)
      return found;
  }
  const auto made = add_result(buffer, nbytes);
  if (buffer != nullptr) {
    slots[made].fresh = !buffer->has_contents;
    uses_shared = uses_shared || buffer->shared;
    uses_failed = uses_failed || buffer->failure != nullptr;
  }
  return made;
}

int32_t Window::add_result(Buffer* buffer, size_t nbytes) {
  const auto made = static_cast<int32_t>(slots.size());
  auto& slot = slots.emplace_back();
  slot.nbytes = nbytes;
  slot.fresh = true;
  if (buffer != nullptr) {
    slot.buffer = BufferRef::reclaim_copy(buffer);
    buffer->uses.push_back({this, made});
    buffer->quiet.store(false, std::memory_order_relaxed);
  }
  return made;
}

void Window::storage_died(int32_t index) {
  auto& slot = slots[index];
  slot.alive = false;
  if (!slot.fresh)
    held_bytes += slot.nbytes;
}

void Window::close() {
  for (const auto& slot : slots) {
    if (!slot.buffer)
      continue;
    auto& uses = slot.buffer->uses;
    for (auto& use : uses) {
      if (use.window != this)
        continue;
      use = uses.back();
      uses.pop_back();
      break;
    }
  }
}

std::vector<int32_t> Window::order() const {
  std::vector<int32_t> order;
  std::vector<bool> known(slots.size());
  for (const auto index : slots_of_calls) {
    if (known[index])
      continue;
    known[index] = true;
    order.push_back(index);
  }
  return order;
}

std::vector<int32_t> Window::places(const std::vector<int32_t>& order) const {
  std::vector<int32_t> found(slots.size(), -1);
  for (size_t k = 0; k < order.size(); ++k)
    found[order[k]] = static_cast<int32_t>(k);
  return found;
}

void Window::structure(const std::vector<int32_t>& order, std::vector<int64_t>& words) const {
  words.clear();
  words.reserve(calls.size() + slots_of_calls.size() + 2 * slots.size());
  for (const auto& call : calls)
    words.push_back(call.entry->id);
  for (const auto index : order) {
    const auto& slot = slots[index];
    words.push_back((slot.fresh ? -1 : -2) - (slot.alive ? 2 : 0));
    words.push_back(static_cast<int64_t>(slot.nbytes));
  }
  const auto numbers = places(order);
  for (const auto index : slots_of_calls)
    words.push_back(numbers[index]);
}

const std::string& Window::line_of(size_t call) const {
  static const std::string nothing;
  return call < lines.size() ? lines[call] : nothing;
}

void Window::let_entries_go() {
  for (const auto& call : calls)
    --call.entry->in_windows;
}

void Window::clear() {
  calls.clear();
  by_rule.clear();
  slots_of_calls.clear();
  numbers.clear();
  lines.clear();
  slots.clear();
  held_bytes = 0;
  uses_shared = uses_failed = replayed = false;
  profiled = 0;
}

}  // namespace tenon
