// An error of a call that had returned before it ran. It is raised by whoever reads what the call
// should have made, as often as it is read.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace tenon {

class Failure {
 public:
  // Of the exception that is being handled. `where` is added to its text.
  static std::shared_ptr<Failure> current(const std::string& where);
  // Of an error that was not raised: one of a kernel's checks.
  static std::shared_ptr<Failure> of(std::function<void()> raise);

  // The same error, with more to its text.
  std::shared_ptr<Failure> with(const std::string& where);

  // Raises it: the same type and text each time, on any thread.
  [[noreturn]] void raise();
  // Has anybody raised it yet?
  bool seen() const {
    return seen_;
  }

 private:
  explicit Failure(std::function<void()> raise) : raise_(std::move(raise)) {}

  std::function<void()> raise_;
  std::atomic<bool> seen_{false};
};

}  // namespace tenon
