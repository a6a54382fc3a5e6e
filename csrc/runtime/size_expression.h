// Whole numbers that follow from a program's sizes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tenon {

// A whole number as a function of symbols, written for a stack: the operands, then what joins them.
struct SizeExpression {
  // `constant` and `symbol` are followed by the number, or by which symbol. Divisions round down;
  // `exactly` is one that leaves no rest. `scale` multiplies by a constant that has the bits of a
  // double, and rounds to zero. torch_tenon/runtime/size_words.py has them for Python.
  enum Word : int64_t {
    constant,
    symbol,
    add,
    multiply,
    divide,
    modulo,
    exactly,
    minimum,
    maximum,
    scale
  };
  std::vector<int64_t> words;

  static SizeExpression of(Word kind, int64_t number) {
    return {{kind, number}};
  }
  SizeExpression joined(Word join, const SizeExpression& other) const;
  // None where a division leaves a rest that must not, or is by what is not positive, and where a
  // number overflows, or is none.
  std::optional<int64_t> evaluate(std::span<const int64_t> symbols) const;

  // Computes it with values of any type. `of_constant` and `of_symbol` give that of a number, and
  // of a symbol by its number. `join(word, left, right)` makes `left` that of both; false: there is
  // none. None as well where the words are no expression of so many symbols.
  template <class T, class OfConstant, class OfSymbol, class Join>
  std::optional<T> fold(
      size_t symbols, OfConstant of_constant, OfSymbol of_symbol, Join join) const {
    std::array<T, 64> stack;
    size_t count = 0;
    for (size_t k = 0; k < words.size(); ++k) {
      const auto word = words[k];
      if (word == constant || word == symbol) {
        if (++k == words.size() || count == stack.size())
          return std::nullopt;
        if (word == constant)
          stack[count++] = of_constant(words[k]);
        else if (const auto number = static_cast<size_t>(words[k]); number < symbols)
          stack[count++] = of_symbol(number);
        else
          return std::nullopt;
        continue;
      }
      if (count < 2)
        return std::nullopt;
      T& right = stack[--count];
      if (word < add || word > scale || !join(static_cast<Word>(word), stack[count - 1], right))
        return std::nullopt;
    }
    return count == 1 ? std::optional(std::move(stack[0])) : std::nullopt;
  }
};

// `number` times the double that has these bits, rounded to zero; none where it is no number, or
// is too large.
std::optional<int64_t> scaled(int64_t number, int64_t bits);

}  // namespace tenon
