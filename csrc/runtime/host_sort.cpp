// Sorting on the host.

#include <algorithm>

#include "runtime/host_ops.h"
#include "runtime/keyed.h"

namespace tenon {

void sort_first(std::span<Keyed> all, size_t count) {
  const auto before = [](const Keyed& a, const Keyed& b) {
    return a.key != b.key ? a.key < b.key : a.number < b.number;
  };
  std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(count), all.end(), before);
}

namespace {

enum class Number { natural, whole, real, bits16 };

Number kind_of(DType dtype) {
  switch (static_cast<int>(dtype)) {
    case 0:   // uint8
    case 11:  // bool
    case 27:  // uint16 to uint64
    case 28:
    case 29:
      return Number::natural;
    case 1:  // int8 to int64
    case 2:
    case 3:
    case 4:
      return Number::whole;
    case 5:   // float16
    case 15:  // bfloat16
    case 6:   // float32
    case 7:   // float64
      return Number::real;
    default:
      fail(ErrorKind::unsupported, "no order of elements of dtype {}", static_cast<int>(dtype));
  }
}

// A number that is ordered as the element is among its like; NaN is greater than all others, and
// both zeros are the same.
uint64_t key_of(const char* element, size_t itemsize, Number kind, DType dtype) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, itemsize);  // little endian, as every target's host is
  const auto unused = 64 - 8 * itemsize;
  const auto sign = uint64_t{1} << 63;
  if (kind == Number::natural)
    return bits;
  bits <<= unused;
  if (kind == Number::whole)
    return bits ^ sign;
  const auto exponent_bits = dtype == DType{5} ? 5u : dtype == DType{7} ? 11u : 8u;
  const auto infinity = ((uint64_t{1} << exponent_bits) - 1) << (63 - exponent_bits);
  const auto magnitude = bits & ~sign;
  if (magnitude > infinity)
    return UINT64_MAX;
  if (magnitude == 0)
    return sign;
  return bits & sign ? ~bits : bits | sign;
}

// The places of a tensor's elements along a dimension, for each place in the others.
struct Rows {
  Rows(const TensorLayout& layout, int64_t dim) : layout(layout), dim(static_cast<size_t>(dim)) {}

  // Bytes from the start of the tensor's memory to a row's first element.
  int64_t start(int64_t row) const {
    auto offset = layout.offset;
    for (auto d = layout.sizes.size(); d-- > 0;) {
      if (d == dim)
        continue;
      offset += row % layout.sizes[d] * layout.strides[d];
      row /= layout.sizes[d];
    }
    return offset * itemsize;
  }
  // Bytes from one element to the next; a tensor without dimensions has one.
  int64_t step() const {
    return layout.sizes.empty() ? 0 : layout.strides[dim] * itemsize;
  }
  int64_t length() const {
    return layout.sizes.empty() ? 1 : layout.sizes[dim];
  }
  // None where there are more than a number counts: a tensor may repeat its elements.
  std::optional<int64_t> count() const {
    int64_t rows = 1;
    bool fits = true;
    for (size_t d = 0; d < layout.sizes.size(); ++d) {
      if (d == dim)
        continue;
      if (layout.sizes[d] == 0)
        return 0;
      fits = fits && !__builtin_mul_overflow(rows, layout.sizes[d], &rows);
    }
    return fits ? std::optional(rows) : std::nullopt;
  }

  const TensorLayout& layout;
  const size_t dim;
  const int64_t itemsize = static_cast<int64_t>(item_size(layout.dtype));
};

// What a call's data has to be.
template <class... Parts>
void check_call(
    const CallStep& step,
    bool holds,
    FormatOf<std::string, Parts...> format,
    const Parts&... parts) {
  if (!holds)
    fail(ErrorKind::damaged, format, name_of_op(step.op), parts...);
}

int64_t integer(const CallStep& step, size_t argument) {
  check_call(
      step,
      argument < step.arguments.size() && step.arguments[argument].kind == Argument::Kind::constant,
      "{} lacks an argument");
  const auto& value = step.arguments[argument].value;
  check_call(
      step,
      value.kind == Value::Kind::integer || value.kind == Value::Kind::truth,
      "{} has an argument that is no number");
  return value.integer;
}

// The first `count` of each row in order, with their places.
void order(
    const CallStep& step,
    std::span<void* const> tensors,
    std::span<void* const> results,
    int64_t dim,
    bool descending,
    std::optional<int64_t> count) {
  check_call(step, tensors.size() == 1 && results.size() == 2, "{} has other tensors");
  const auto& layout = step.tensors[0].layout;
  const auto rank = std::max<int64_t>(static_cast<int64_t>(layout.sizes.size()), 1);
  dim = dim < 0 ? dim + rank : dim;
  check_call(step, dim >= 0 && dim < rank, "{} has no dimension {}", dim);
  const Rows rows(layout, dim);
  check_call(step, rows.count().has_value(), "{} has more rows than there are");
  const auto kept = count.value_or(rows.length());
  check_data(kept >= 0 && kept <= rows.length(), "selected index k out of range");
  auto expected = layout.sizes;
  if (!expected.empty())
    expected[static_cast<size_t>(dim)] = kept;
  for (size_t k = 0; k < results.size(); ++k) {
    const auto& result = step.results[k];
    const auto dtype = k == 0 ? layout.dtype : DType{4};
    check_call(
        step,
        !result || (result->layout.dtype == dtype && result->layout.sizes == expected),
        "{} has results of other sizes");
  }
  const auto kind = kind_of(layout.dtype);
  const auto itemsize = static_cast<size_t>(rows.itemsize);
  std::vector<Keyed> elements(static_cast<size_t>(rows.length()));
  for (int64_t row = 0; row < *rows.count() && kept > 0; ++row) {
    const auto* from = static_cast<const char*>(tensors[0]) + rows.start(row);
    for (int64_t k = 0; k < rows.length(); ++k) {
      const auto key = key_of(from + k * rows.step(), itemsize, kind, layout.dtype);
      elements[static_cast<size_t>(k)] = {descending ? ~key : key, k};
    }
    sort_first(elements, static_cast<size_t>(kept));
    for (size_t k = 0; k < results.size(); ++k) {
      if (results[k] == nullptr)
        continue;
      const Rows out(step.results[k]->layout, dim);
      auto* to = static_cast<char*>(results[k]) + out.start(row);
      for (int64_t j = 0; j < kept; ++j) {
        const auto& index = elements[static_cast<size_t>(j)].number;
        const auto* element =
            k == 0 ? from + index * rows.step() : reinterpret_cast<const char*>(&index);
        std::memcpy(to + j * out.step(), element, static_cast<size_t>(out.itemsize));
      }
    }
  }
}

}  // namespace

// sort(self, dim, descending)
void host_sort(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results) {
  order(step, tensors, results, integer(step, 1), integer(step, 2) != 0, std::nullopt);
}

// sort.stable(self, *, stable, dim, descending)
void host_sort_stable(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results) {
  order(step, tensors, results, integer(step, 2), integer(step, 3) != 0, std::nullopt);
}

// topk(self, k, dim, largest, sorted): they are sorted in any case.
void host_topk(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results) {
  order(step, tensors, results, integer(step, 2), integer(step, 3) != 0, integer(step, 1));
}

}  // namespace tenon
