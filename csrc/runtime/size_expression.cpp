#include "runtime/size_expression.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tenon {

SizeExpression SizeExpression::joined(Word join, const SizeExpression& other) const {
  auto all = words;
  all.insert(all.end(), other.words.begin(), other.words.end());
  all.push_back(join);
  return {std::move(all)};
}

std::optional<int64_t> SizeExpression::evaluate(std::span<const int64_t> symbols) const {
  const auto join = [](Word word, int64_t& a, int64_t b) {
    if (word == add)
      return !__builtin_add_overflow(a, b, &a);
    if (word == multiply)
      return !__builtin_mul_overflow(a, b, &a);
    if (word == minimum || word == maximum) {
      a = word == minimum ? std::min(a, b) : std::max(a, b);
      return true;
    }
    if (word == scale) {
      const auto value = scaled(a, b);
      a = value.value_or(0);
      return value.has_value();
    }
    if (b <= 0 || (word == exactly && a % b != 0))
      return false;
    const auto rest = a % b < 0 ? a % b + b : a % b;
    a = word == modulo ? rest : a / b - (a % b < 0 ? 1 : 0);
    return true;
  };
  return fold<int64_t>(
      symbols.size(),
      [](int64_t number) { return number; },
      [&](size_t k) { return symbols[k]; },
      join);
}

std::optional<int64_t> scaled(int64_t number, int64_t bits) {
  const double value = static_cast<double>(number) * std::bit_cast<double>(bits);
  if (!(std::abs(value) < 0x1p62))
    return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace tenon
