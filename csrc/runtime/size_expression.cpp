#include "runtime/size_expression.h"

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

}  // namespace tenon
