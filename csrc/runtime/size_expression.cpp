#include "runtime/size_expression.h"

#include <array>

namespace tenon {

SizeExpression SizeExpression::joined(Word join, const SizeExpression& other) const {
  auto all = words;
  all.insert(all.end(), other.words.begin(), other.words.end());
  all.push_back(join);
  return {std::move(all)};
}

std::optional<int64_t> SizeExpression::evaluate(std::span<const int64_t> symbols) const {
  std::array<int64_t, 64> stack;
  size_t count = 0;
  for (size_t k = 0; k < words.size(); ++k) {
    const auto word = words[k];
    if (word == constant || word == symbol) {
      if (++k == words.size() || count == stack.size())
        return std::nullopt;
      if (word == symbol && static_cast<size_t>(words[k]) >= symbols.size())
        return std::nullopt;
      stack[count++] = word == constant ? words[k] : symbols[words[k]];
      continue;
    }
    if (count < 2)
      return std::nullopt;
    const auto b = stack[--count];
    auto& a = stack[count - 1];
    if (word == add) {
      if (__builtin_add_overflow(a, b, &a))
        return std::nullopt;
    } else if (word == multiply) {
      if (__builtin_mul_overflow(a, b, &a))
        return std::nullopt;
    } else if (word != divide && word != modulo && word != exactly) {
      return std::nullopt;
    } else {
      if (b <= 0 || (word == exactly && a % b != 0))
        return std::nullopt;
      const auto rest = a % b < 0 ? a % b + b : a % b;
      a = word == modulo ? rest : a / b - (a % b < 0 ? 1 : 0);
    }
  }
  return count == 1 ? std::optional(stack[0]) : std::nullopt;
}

}  // namespace tenon
