// How often each op took which route, and how long it took.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tenon {

struct Counter {
  std::string route;  // lowered, library, kernel, decomposed or fallback
  std::string op;     // with namespace and overload: aten::add.Tensor
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> nanoseconds{0};
  std::atomic<int64_t> bytes_copied{0};  // to the host and back, on a target without host memory
  const Counter* more = nullptr;         // calls that this one has as well
};

// The counter of that route and op, made on first use. The address stays the same for good.
Counter& counter(const std::string& route, const std::string& op);

// Those with calls: route, op, calls, nanoseconds, bytes copied.
std::vector<std::tuple<std::string, std::string, int64_t, int64_t, int64_t>> counter_values();
void reset_counters();

// Counts one call and the time until the end of the scope.
class CountedCall {
 public:
  explicit CountedCall(Counter& counter)
      : counter_(counter), start_(std::chrono::steady_clock::now()) {}
  ~CountedCall() {
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    counter_.calls.fetch_add(1, std::memory_order_relaxed);
    counter_.nanoseconds.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count(),
        std::memory_order_relaxed);
  }
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;

 private:
  Counter& counter_;
  std::chrono::steady_clock::time_point start_;
};

// A hand-written kernel, or one of PyTorch's that is right for the device as well, that counts its
// calls.
template <class Result, class... Arguments>
auto counted(const char* op, Result (*kernel)(Arguments...)) {
  return [&counter = counter("kernel", op), kernel](Arguments... arguments) -> Result {
    const CountedCall call(counter);
    return kernel(std::forward<Arguments>(arguments)...);
  };
}

}  // namespace tenon

// Counts the call of a hand-written kernel until the end of the enclosing scope.
#define TENON_COUNT_KERNEL(op)                                             \
  static ::tenon::Counter& tenon_counter = ::tenon::counter("kernel", op); \
  ::tenon::CountedCall tenon_counted_call(tenon_counter)
