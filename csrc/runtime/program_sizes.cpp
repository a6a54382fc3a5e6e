#include "runtime/program_sizes.h"

#include <algorithm>
#include <array>

namespace tenon {
namespace {

using Word = SizeExpression::Word;

constexpr int64_t kNoBound = Symbol::kNoBound;

int64_t bounded(__int128 number) {
  return static_cast<int64_t>(std::clamp<__int128>(number, -kNoBound, kNoBound));
}

// Rounded down; what has no bound has none then either.
int64_t divided(int64_t number, int64_t by) {
  const bool is_bound = number > -kNoBound && number < kNoBound;
  return is_bound ? number / by - (number % by < 0 ? 1 : 0) : number;
}

Bounds joined(Word join, const Bounds& a, const Bounds& b) {
  const auto least = std::max<int64_t>(b.least, 1), greatest = std::max<int64_t>(b.greatest, 1);
  switch (join) {
    case SizeExpression::add:
      return {bounded(__int128{a.least} + b.least), bounded(__int128{a.greatest} + b.greatest)};
    case SizeExpression::multiply: {
      const auto ends = std::minmax(
          {__int128{a.least} * b.least,
           __int128{a.least} * b.greatest,
           __int128{a.greatest} * b.least,
           __int128{a.greatest} * b.greatest});
      return {bounded(ends.first), bounded(ends.second)};
    }
    case SizeExpression::modulo:
      return {0, greatest - 1};
    case SizeExpression::minimum:
    case SizeExpression::maximum:
    case SizeExpression::scale:
      return {-kNoBound, kNoBound};
    default:
      return {
          divided(a.least, a.least < 0 ? least : greatest),
          divided(a.greatest, a.greatest < 0 ? greatest : least)};
  }
}

std::string joined_text(Word join, const std::string& left, const std::string& right) {
  static constexpr char kJoins[][8] = {
      " + ", " * ", " // ", " % ", " // ", " min ", " max ", " scale "};
  return text_of("({}{}{})", left, kJoins[static_cast<size_t>(join - SizeExpression::add)], right);
}

std::string list_of(std::span<const int64_t> sizes) {
  std::string list;
  for (const auto size : sizes)
    add_to_list(list, text_of("{}", size));
  return text_of("[{}]", list);
}

std::string list_of(const SizedTensor& tensor, const Method& method) {
  std::string list;
  for (const auto& size : tensor.sizes)
    add_to_list(list, spelled(size, method.symbols));
  return text_of("[{}]", list);
}

int64_t value_of(
    const SizeExpression& value, const Method& method, std::span<const int64_t> symbols) {
  const auto found = value.evaluate(symbols);
  if (!found)
    fail(
        ErrorKind::error,
        "{}: {} is no whole number for sizes {}",
        method.name,
        spelled(value, method.symbols),
        list_of(symbols));
  return *found;
}

std::string values_text(const Method& method, std::span<const int64_t> symbols) {
  std::string list;
  for (size_t k = 0; k < symbols.size(); ++k)
    add_to_list(list, text_of("{} = {}", method.symbols[k].name, symbols[k]));
  return list;
}

void check_bounds(const Method& method, size_t k, int64_t value) {
  const auto& [name, least, greatest, _] = method.symbols[k];
  if (value >= least && value <= greatest)
    return;
  const auto& [input, dimension] = method.found[k];
  fail(
      ErrorKind::error,
      "{}: input '{}' has size {} at dimension {}, where {} is expected to be at least {}{}",
      method.name,
      method.inputs[input].name,
      value,
      dimension,
      name,
      least,
      greatest == kNoBound ? std::string() : text_of(" and at most {}", greatest));
}

void check_holds(const SizeCheck& check, const Method& method, std::span<const int64_t> symbols) {
  using Comparison = SizeCheck::Comparison;
  const auto left = value_of(check.left, method, symbols);
  const auto right = value_of(check.right, method, symbols);
  static constexpr char kTexts[][5] = {" == ", " != ", " <= ", " < "};
  const std::array holds{left == right, left != right, left <= right, left < right};
  static_assert(static_cast<size_t>(Comparison::less) + 1 == std::size(kTexts));
  const auto which = static_cast<size_t>(check.comparison);
  if (!holds[which])
    fail(
        ErrorKind::error,
        "{}: it was exported for sizes where {}{}{}, and not for {}",
        method.name,
        spelled(check.left, method.symbols),
        kTexts[which],
        spelled(check.right, method.symbols),
        values_text(method, symbols));
}

}  // namespace

std::optional<Bounds> bounds_of(const SizeExpression& value, std::span<const Symbol> symbols) {
  const auto join = [](Word word, Bounds& left, const Bounds& right) {
    left = joined(word, left, right);
    return true;
  };
  return value.fold<Bounds>(
      symbols.size(),
      [](int64_t number) { return Bounds{bounded(number), bounded(number)}; },
      [&](size_t k) { return Bounds{symbols[k].least, symbols[k].greatest}; },
      join);
}

std::string spelled(const SizeExpression& value, std::span<const Symbol> symbols) {
  const auto join = [](Word word, std::string& left, const std::string& right) {
    left = joined_text(word, left, right);
    return true;
  };
  const auto text = value.fold<std::string>(
      symbols.size(),
      [](int64_t number) { return text_of("{}", number); },
      [&](size_t k) { return symbols[k].name; },
      join);
  if (!text)
    return "no expression";
  // No brackets around all of it.
  return text->starts_with('(') ? text->substr(1, text->size() - 2) : *text;
}

bool has_sizes(const Method& method, std::span<const GivenTensor> inputs) {
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].sizes.size() != method.inputs[k].sizes.size())
      return false;
  }
  std::vector<int64_t> symbols(method.found.size());
  for (size_t k = 0; k < symbols.size(); ++k) {
    const auto& [input, dimension] = method.found[k];
    symbols[k] = inputs[input].sizes[dimension];
    if (symbols[k] < method.symbols[k].least || symbols[k] > method.symbols[k].greatest)
      return false;
  }
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (size_t d = 0; d < inputs[k].sizes.size(); ++d) {
      if (method.inputs[k].sizes[d].evaluate(symbols) != inputs[k].sizes[d])
        return false;
    }
  }
  return true;
}

std::string sizes_of_inputs(const Method& method) {
  std::string list;
  for (const auto& input : method.inputs)
    add_to_list(list, text_of("'{}' {}", input.name, list_of(input, method)));
  return list;
}

std::vector<int64_t> symbols_of(const Method& method, std::span<const GivenTensor> inputs) {
  if (inputs.size() != method.inputs.size())
    fail(
        ErrorKind::error,
        "{} takes {} inputs, and is given {}",
        method.name,
        method.inputs.size(),
        inputs.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& expected = method.inputs[k];
    if (inputs[k].dtype != expected.dtype)
      fail(
          ErrorKind::error,
          "{}: input '{}' is expected to be {}, and is {}",
          method.name,
          expected.name,
          name_of(expected.dtype),
          name_of(inputs[k].dtype));
    if (inputs[k].sizes.size() != expected.sizes.size())
      fail(
          ErrorKind::error,
          "{}: input '{}' is expected to have {} dimensions, {}, and has {}, {}",
          method.name,
          expected.name,
          expected.sizes.size(),
          list_of(expected, method),
          inputs[k].sizes.size(),
          list_of(inputs[k].sizes));
  }
  std::vector<int64_t> symbols(method.found.size());
  for (size_t k = 0; k < symbols.size(); ++k) {
    const auto& [input, dimension] = method.found[k];
    symbols[k] = inputs[input].sizes[dimension];
    check_bounds(method, k, symbols[k]);
  }
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& expected = method.inputs[k];
    for (size_t d = 0; d < expected.sizes.size(); ++d) {
      const auto size = value_of(expected.sizes[d], method, symbols);
      if (inputs[k].sizes[d] != size)
        fail(
            ErrorKind::error,
            "{}: input '{}' has size {} at dimension {}, where {} is expected: its sizes are "
            "{}{}{}",
            method.name,
            expected.name,
            inputs[k].sizes[d],
            d,
            size,
            list_of(expected, method),
            symbols.empty() ? "" : " with ",
            values_text(method, symbols));
    }
  }
  for (size_t k = symbols.size(); k < method.symbols.size(); ++k)
    symbols.push_back(value_of(method.symbols[k].value, method, symbols));
  for (const auto& check : method.checks)
    check_holds(check, method, symbols);
  return symbols;
}

void set_layout(
    TensorLayout& layout,
    const SizedTensor& tensor,
    const Method& method,
    std::span<const int64_t> symbols) {
  layout.dtype = tensor.dtype;
  layout.sizes = std::vector<int64_t>(tensor.sizes.size());
  for (size_t d = 0; d < tensor.sizes.size(); ++d)
    layout.sizes[d] = value_of(tensor.sizes[d], method, symbols);
  auto strides = dense_strides(layout.sizes);
  layout.strides = strides ? std::move(*strides) : std::vector<int64_t>();
  const auto nbytes = storage_bytes(layout);
  if (!nbytes)
    fail(
        ErrorKind::error,
        "{}: '{}' would have sizes {}, which no tensor has",
        method.name,
        tensor.name,
        list_of(layout.sizes));
  layout.nbytes = *nbytes;
}

}  // namespace tenon
