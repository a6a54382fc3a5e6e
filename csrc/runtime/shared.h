// Objects with several owners.
#pragma once

#include <memory>
#include <utility>

namespace tenon {

// As `std::make_shared` makes one, with less code for each type and an allocation more.
template <class T, class... Arguments>
std::shared_ptr<T> shared(Arguments&&... arguments) {
  auto* const made = new T(std::forward<Arguments>(arguments)...);
  const std::shared_ptr<void> owner(
      static_cast<void*>(made), +[](void* object) { delete static_cast<T*>(object); });
  return {owner, made};
}

}  // namespace tenon
