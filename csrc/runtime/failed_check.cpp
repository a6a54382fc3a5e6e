#include "runtime/failure.h"

namespace tenon {
namespace {

// The numbers of CHECKS in torch_tenon/compiler/kernel.py.
enum class Check : int64_t {
  index = 1,
  embedding = 2,
  gather = 3,
  division = 4,
  target = 5,
  batch = 6,
  index_copy = 7,
  assertion = 8
};

}  // namespace

Error failed_check(std::span<const int64_t> status, const std::string& step) {
  const auto check = static_cast<Check>(status[0]);
  const auto size = status[2];
  // A negative index was counted from the end before it was checked.
  const auto index = check == Check::index && status[1] < 0 ? status[1] - size : status[1];
  const auto where = text_of(" (in the kernel of {})", step);
  const auto outside =
      text_of("index {} is out of bounds for dimension 0 with size {}{}", index, size, where);
  switch (check) {
    case Check::division:
      return {ErrorKind::error, text_of("ZeroDivisionError{}", where)};
    case Check::gather:
      return {ErrorKind::error, outside};
    case Check::embedding:
      return {ErrorKind::out_of_range, text_of("index out of range in self{}", where)};
    case Check::target:
      return {ErrorKind::out_of_range, text_of("Target {} is out of bounds.{}", index, where)};
    case Check::batch:
      return {
          ErrorKind::error,
          text_of(
              "INDICES element is out of DATA bounds, id={} axis_dim={}{}", index, size, where)};
    case Check::index_copy:
      return {ErrorKind::out_of_range, text_of("index_copy_(): {}", outside)};
    case Check::assertion:  // whose text is in the name
      return {ErrorKind::error, text_of("a value is not what it has to be{}", where)};
    case Check::index:
      return {ErrorKind::out_of_range, outside};
  }
  return {ErrorKind::error, text_of("a kernel reports a check of kind {}{}", status[0], where)};
}

}  // namespace tenon
