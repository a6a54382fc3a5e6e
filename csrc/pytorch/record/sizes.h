// Whole numbers that follow from others: how the sizes of a call or of a window hang together where
// the same comes again with other sizes.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/size_expression.h"

namespace tenon {

// Something else that a number was in all that was seen.
struct SecondReason {
  uint32_t place = 0;
  SizeExpression expression;
};

// What is claimed of lists of numbers: some of them are symbols, the others follow from these.
struct SizeClaim {
  std::vector<uint32_t> symbols;        // their places
  std::vector<SizeExpression> numbers;  // by place
  // Of numbers that were computed, where several expressions gave what was seen: which of these
  // makes them is not known, so the claim is for lists where all do.
  std::vector<SecondReason> reasons;
  std::vector<int64_t> seen;  // one of the lists that it was made of

  // The symbols of a list for which the claim holds, as far as the list goes; none otherwise.
  std::optional<std::vector<int64_t>> symbols_of(c10::ArrayRef<int64_t> list) const;
};

// Whether a claim that comes from a file holds for its own example.
bool is_sound(const SizeClaim& claim);

// What holds for all of the lists: numbers that are equal in each, that are a multiple or a product
// of others, or their sum; what follows from none of those before it is a symbol. `made`: by place,
// whether something has computed the number from those before. A sum is looked for only there, as
// it is easily met by chance. With `made_follow` nothing is claimed where such a number would be a
// symbol.
std::optional<SizeClaim> claim_of(
    c10::ArrayRef<std::vector<int64_t>> lists, const std::vector<bool>& made, bool made_follow);

}  // namespace tenon
