#include "record/op_sizes.h"

#include <algorithm>
#include <functional>

namespace tenon {
namespace {

using c10::IValue;

// Sizes that a slice of another tensor's gradient has to have.
bool allows_slice(c10::ArrayRef<IValue> arguments) {
  const auto& grad = arguments[0].toTensor();
  const auto whole = arguments[1].toIntVector();
  const auto dim = arguments[2].toInt();
  const auto step = arguments[5].toInt();
  const auto rank = static_cast<int64_t>(whole.size());
  if (dim < -rank || dim >= rank || grad.dim() != rank || step <= 0)
    return false;
  const auto d = dim < 0 ? dim + rank : dim;
  const auto bound = [&](int64_t k) {
    return std::clamp(k < 0 ? k + whole[d] : k, int64_t{0}, whole[d]);
  };
  const auto start = bound(arguments[3].toInt());
  const auto end = std::max(bound(arguments[4].toInt()), start);
  for (int64_t k = 0; k < rank; ++k) {
    if (grad.size(k) != (k == d ? (end - start + step - 1) / step : whole[k]))
      return false;
  }
  return true;
}

// An index may show less of the other dimensions, and no more.
bool allows_gather(c10::ArrayRef<IValue> arguments) {
  const auto& self = arguments[0].toTensor();
  const auto& index = arguments[2].toTensor();
  const auto rank = self.dim();
  const auto dim = arguments[1].toInt();
  if (rank == 0 || index.dim() != rank || dim < -rank || dim >= rank)
    return false;
  for (int64_t k = 0; k < rank; ++k) {
    if (k != (dim < 0 ? dim + rank : dim) && index.size(k) > self.size(k))
      return false;
  }
  return true;
}

// As for a gather, and what is scattered, if that is a tensor, is at least as large everywhere.
bool allows_scatter(c10::ArrayRef<IValue> arguments) {
  if (!allows_gather(arguments))
    return false;
  if (!arguments[3].isTensor())
    return true;
  const auto index = arguments[2].toTensor().sizes();
  const auto source = arguments[3].toTensor().sizes();
  return index.size() == source.size() &&
         std::equal(index.begin(), index.end(), source.begin(), std::less_equal<>());
}

// So many of a dimension's elements as it has.
bool allows_choice(c10::ArrayRef<IValue> arguments) {
  const auto& self = arguments[0].toTensor();
  const auto count = arguments[1].toInt(), dim = arguments[2].toInt(), rank = self.dim();
  return dim >= -rank && dim < rank && count >= 0 && count <= self.size(dim);
}

// A batch of matrices: the sizes of factors are rounded, as it were, to the smaller side.
bool allows_matrices(c10::ArrayRef<IValue> arguments) {
  return arguments[0].toTensor().dim() > 2;
}

// Numbers on the right may be a batch of vectors, or matrices that all of the batch share: which,
// depends on whether the sizes are equal. As a number below 2 it is part of the key.
std::vector<int64_t> is_batch_of_vectors(c10::ArrayRef<IValue> arguments) {
  const auto left = arguments[0].toTensor().sizes(), right = arguments[1].toTensor().sizes();
  return {right.size() == 1 || (!left.empty() && right == left.slice(0, left.size() - 1)) ? 1 : 0};
}

// The half of a dimension that a transform of real numbers gives: it is rounded.
std::vector<int64_t> half_length(c10::ArrayRef<IValue> arguments) {
  const auto& self = arguments[0].toTensor();
  const auto dims = arguments[1].toIntVector();
  const auto rank = self.dim();
  if (dims.empty() || !arguments[3].toBool() || dims.back() < -rank || dims.back() >= rank)
    return {};
  return {self.size(dims.back()) / 2 + 1};
}

// With a step other than 1 the length is rounded.
bool allows_range(c10::ArrayRef<IValue> arguments) {
  const bool whole = arguments[0].isInt() && (!arguments[1].isScalar() || arguments[1].isInt());
  const bool has_step = arguments.size() > 3 && arguments[2].isScalar();
  return whole && (!has_step || (arguments[2].isInt() && arguments[2].toInt() == 1));
}

// The length of what is joined.
std::vector<int64_t> total_length(c10::ArrayRef<IValue> arguments) {
  const auto dim = arguments[1].toInt();
  int64_t total = 0;
  for (const auto& tensor : arguments[0].toTensorVector()) {
    const auto d = dim < 0 ? dim + tensor.dim() : dim;
    total += d >= 0 && d < tensor.dim() ? tensor.size(d) : 0;
  }
  return {total};
}

// PyTorch's Meta kernels are not asked. Its import registers kernels from Python in the place of
// nearly all that it has in C++. Recording does not wait for the interpreter.
constexpr SizeRule kRules[] = {
    {"arange", allows_range},
    {"cat", nullptr, total_length},
    {"slice_backward", allows_slice},
    {"gather", allows_gather},
    {"scatter", allows_scatter},
    {"topk", allows_choice},
    {"matrices", allows_matrices},
    {"solve", allows_matrices, is_batch_of_vectors},
    {"transform_of_real", nullptr, half_length},
};

std::vector<SizeRule> all_rules() {
  std::vector<SizeRule> all(std::begin(kRules), std::end(kRules));
  const auto of_images = image_size_rules();
  all.insert(all.end(), of_images.begin(), of_images.end());
  return all;
}

SizeRule rule_named(std::string_view name) {
  for (const auto& rule : all_rules()) {
    if (rule.name == name)
      return rule;
  }
  TORCH_CHECK(false, "the table of ops names ", name, " as a rule of sizes; there is no such");
}

c10::TypeKind kind_of(const c10::Argument& argument) {
  auto type = argument.real_type();
  while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType)
    type = type->containedType(0);
  return type->kind();
}

Differing differing(const OpRule& rule, const c10::Argument& argument) {
  const auto& name = argument.name();
  switch (kind_of(argument)) {
    case c10::TypeKind::TensorType:
      if (rule.sizes != SizesOfCalls::kBatch)
        return Differing::kSizes;
      return name == "weight" || name == "bias" ? Differing::kNothing : Differing::kBatch;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::NumberType:
      return std::count(rule.size_arguments.begin(), rule.size_arguments.end(), name) > 0
                 ? Differing::kSizes
                 : Differing::kNothing;
    default:
      return Differing::kNothing;
  }
}

}  // namespace

OpSizes sizes_of(const c10::OperatorHandle& op, const OpRule& rule) {
  OpSizes sizes;
  const auto& schema = op.schema();
  sizes.arguments.assign(schema.arguments().size(), Differing::kNothing);
  const auto space = schema.getNamespace();
  sizes.follow = (space == "aten" || space == "tenon") &&
                 (rule.sizes != SizesOfCalls::kUnknown || op.hasTag(at::Tag::pointwise) ||
                  schema.name().rfind("aten::_foreach_", 0) == 0);
  if (!sizes.follow)
    return sizes;
  if (!rule.size_rule.empty()) {
    const auto found = rule_named(rule.size_rule);
    sizes.allows = found.allows;
    sizes.more = found.more;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    sizes.arguments[i] = differing(rule, schema.arguments()[i]);
  return sizes;
}

std::vector<std::string> size_rules() {
  std::vector<std::string> names;
  for (const auto& rule : all_rules())
    names.emplace_back(rule.name);
  return names;
}

}  // namespace tenon
