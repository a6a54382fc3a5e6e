// An error of work that had returned before it ran. It is raised by whoever reads what the work
// should have made, as often as it is read.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/error.h"

namespace tenon {

class Failure {
 public:
  // Of the exception that is being handled. `where` is added to its text.
  static std::shared_ptr<Failure> current(const std::string& where);
  // Of an error that was not raised.
  static std::shared_ptr<Failure> of(Error error);
  // The same error, with more to its text.
  std::shared_ptr<Failure> with(const std::string& where);
  // Raises it: the same type and text each time, on any thread.
  [[noreturn]] void raise();
  // Has anybody raised it yet?
  bool seen() const {
    return seen_;
  }

  // What raises the exception that is being handled again, with `where` added to its text. A
  // program that embeds the runtime has types of its own.
  using Capture = std::function<void()> (*)(const std::string& where);
  static void set_capture(Capture capture);

 private:
  explicit Failure(std::function<void()> raise) : raise_(std::move(raise)) {}
  std::function<void()> raise_;
  std::atomic<bool> seen_{false};
};

// The error of the check that left this status (`kStatusWords` of them), in the kernel of that
// name: of the kind and with the text that PyTorch has.
Error failed_check(std::span<const int64_t> status, const std::string& step);

}  // namespace tenon
