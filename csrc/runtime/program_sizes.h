// The sizes that a method is called with: what its symbols are, and whether they are allowed.
#pragma once

#include "runtime/program_file.h"

namespace tenon {

// What numbers an expression may have for symbols within their bounds; `Symbol::kNoBound` and its
// negative stand for no bound. None where it is no expression.
struct Bounds {
  int64_t least = 0, greatest = 0;
};
std::optional<Bounds> bounds_of(const SizeExpression& value, std::span<const Symbol> symbols);

// An expression as people write it.
std::string spelled(const SizeExpression& value, std::span<const Symbol> symbols);

// An input that is given to a method.
struct GivenTensor {
  DType dtype = kNoDType;
  std::span<const int64_t> sizes;
};

// The symbols' values. Raises where the method takes no such inputs; the error names the method,
// the input, the dimension, and what is expected there.
std::vector<int64_t> symbols_of(const Method& method, std::span<const GivenTensor> inputs);

// Whether the method takes inputs of these sizes, as far as its bounds say. There are as many
// inputs as it has.
bool has_sizes(const Method& method, std::span<const GivenTensor> inputs);

// The sizes of a method's inputs, as people write them.
std::string sizes_of_inputs(const Method& method);

// The layout of an input or output, which is dense, for these symbols. Raises where no tensor is
// so.
void set_layout(
    TensorLayout& layout,
    const SizedTensor& tensor,
    const Method& method,
    std::span<const int64_t> symbols);

}  // namespace tenon
