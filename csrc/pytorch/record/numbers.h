// The numbers among a call's arguments, which may become run-time values: a plan takes them anew in
// each run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace tenon {

// What a `Scalar` argument may be: whole numbers are numbers there, and no sizes or dimensions.
struct NumberArgument {
  bool is_one = false;
  std::optional<int64_t> usual;  // what it is where nothing is given, which is no run-time value

  bool takes(const c10::IValue& value) const {
    return is_one && value.isInt() && value.toInt() != usual;
  }
};
NumberArgument number_argument(const c10::Argument& argument);

// A number that the dtypes of a call do not have, which most kernels refuse, is no run-time value:
// what is known of calls with other numbers does not hold for it. Nor is a NaN: the C compiler sees
// that it is one, and makes another whole number of it than the processor does.
bool has_no_place(const std::vector<NumberArgument>& numbers, c10::ArrayRef<c10::IValue> arguments);

// How a number stands in a key and in a window.
enum NumberKind : int64_t { kDouble = 0, kInt = 1, kBool = 2, kNoNumber = 3 };

// A host tensor without dimensions whose value can stand in a key: a real number.
NumberKind number_kind(const at::Tensor& tensor);
// The value's bits, as a double or an int64.
int64_t number_bits(const at::Tensor& tensor);
// One whose value is complex, which is never a run-time value.
bool is_complex_number(const at::Tensor& tensor);
c10::complex<double> complex_number(const at::Tensor& tensor);

}  // namespace tenon
