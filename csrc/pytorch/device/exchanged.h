// A value for the time of a scope.
#pragma once

#include <utility>

namespace tenon {

// Gives a thread's variable another value until the end of the scope.
template <class T>
class Exchanged {
 public:
  Exchanged(T& variable, T value)
      : variable_(variable), previous_(std::exchange(variable, std::move(value))) {}
  ~Exchanged() {
    variable_ = std::move(previous_);
  }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

 private:
  T& variable_;
  T previous_;
};

}  // namespace tenon
