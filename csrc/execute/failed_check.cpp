#include "execute/failed_check.h"

#include <c10/util/Exception.h>

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
  index_copy = 7
};

}  // namespace

std::exception_ptr failed_check(const int64_t* status, const std::string& step) {
  const auto check = static_cast<Check>(status[0]);
  const auto size = status[2];
  // A negative index was counted from the end before it was checked.
  const auto index = check == Check::index && status[1] < 0 ? status[1] - size : status[1];
  const auto where = c10::str(" (in the kernel of ", step, ")");
  const auto outside =
      c10::str("index ", index, " is out of bounds for dimension 0 with size ", size, where);
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (check) {
    case Check::division:
      return std::make_exception_ptr(c10::Error(here, "ZeroDivisionError" + where));
    case Check::gather:
      return std::make_exception_ptr(c10::Error(here, outside));
    case Check::embedding:
      return std::make_exception_ptr(c10::IndexError(here, "index out of range in self" + where));
    case Check::target:
      return std::make_exception_ptr(
          c10::IndexError(here, c10::str("Target ", index, " is out of bounds.", where)));
    case Check::batch:
      return std::make_exception_ptr(
          c10::Error(
              here,
              c10::str(
                  "INDICES element is out of DATA bounds, id=", index, " axis_dim=", size, where)));
    case Check::index_copy:
      return std::make_exception_ptr(c10::IndexError(here, "index_copy_(): " + outside));
    case Check::index:
      return std::make_exception_ptr(c10::IndexError(here, outside));
  }
  TORCH_INTERNAL_ASSERT(false, "a kernel reports a check of kind ", status[0], where);
}

}  // namespace tenon
