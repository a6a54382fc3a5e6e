// Whole numbers that follow from a program's sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tenon {

// A whole number as a function of symbols, written for a stack: the operands, then what joins them.
struct SizeExpression {
  // `constant` and `symbol` are followed by the number, or by which symbol. Divisions round down;
  // `exactly` is one that leaves no rest.
  enum Word : int64_t { constant, symbol, add, multiply, divide, modulo, exactly };
  std::vector<int64_t> words;

  static SizeExpression of(Word kind, int64_t number) {
    return {{kind, number}};
  }
  SizeExpression joined(Word join, const SizeExpression& other) const;
  // None where a division leaves a rest that must not, or is by what is not positive, and where a
  // number overflows.
  std::optional<int64_t> evaluate(std::span<const int64_t> symbols) const;
};

}  // namespace tenon
