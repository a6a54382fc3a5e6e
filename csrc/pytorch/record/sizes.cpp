#include "record/sizes.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

namespace tenon {
namespace {

// Terms that products of three are looked for among.
constexpr size_t kMostFactors = 24;
// A sum with this much is no chance even where nothing computes it: `x[:, 1:]` of a length.
constexpr int64_t kStep = 1;

// A number in each of the lists.
using Values = std::vector<int64_t>;

struct Term {
  Values values;
  SizeExpression expression;
};

bool is_constant(const Values& values) {
  return std::all_of(values.begin(), values.end(), [&](auto v) { return v == values.front(); });
}

class Search {
 public:
  // What a number that is `values` in the lists follows from, if from any of those before.
  std::optional<SizeExpression> explain(const Values& values, bool made) const {
    if (is_constant(values))
      return SizeExpression::of(SizeExpression::constant, values.front());
    for (const auto& term : terms_) {
      if (term.values == values)
        return term.expression;
    }
    if (auto found = multiple(values, 1))
      return found;
    if (auto found = multiple(values, 2))
      return found;
    if (auto found = sum(values, made))
      return found;
    return multiple(values, 3);
  }

  // What of the terms, which all vary, gives a number that is always the same.
  std::vector<SizeExpression> explain_constant(const Values& values) const {
    std::vector<SizeExpression> found;
    if (auto one = multiple(values, 2))
      found.push_back(std::move(*one));
    if (auto one = sum(values, true))
      found.push_back(std::move(*one));
    return found;
  }

  // All that gives a number which something computed, and which varies.
  std::vector<SizeExpression> explain_each_way(const Values& values) const {
    std::vector<SizeExpression> found;
    for (int count = 1; count <= 3; ++count) {
      if (auto one = multiple(values, count))
        found.push_back(std::move(*one));
    }
    each_sum(values, true, [&](SizeExpression one) {
      found.push_back(std::move(one));
      return true;
    });
    return found;
  }

  void add(Values values, SizeExpression expression) {
    const bool known = std::any_of(
        terms_.begin(), terms_.end(), [&](const auto& term) { return term.values == values; });
    if (!known)
      terms_.push_back({std::move(values), std::move(expression)});
  }

 private:
  using Factors = c10::SmallVector<const Term*, 3>;

  // `values` as a multiple, or a part, of a product of so many of the terms.
  std::optional<SizeExpression> multiple(const Values& values, int count) const {
    Factors factors;
    return multiple(values, Values(values.size(), 1), factors, 0, count);
  }

  // ... of `product`, which is that of the factors, and so many more from the `first` term on.
  std::optional<SizeExpression> multiple(
      const Values& values, const Values& product, Factors& factors, size_t first, int left) const {
    if (left == 0)
      return scaled(values, product, factors);
    Values next(product.size());
    for (size_t k = first; k < std::min(terms_.size(), kMostFactors); ++k) {
      const auto& term = terms_[k];
      bool fits = true;
      for (size_t i = 0; i < next.size(); ++i)
        fits = fits && !__builtin_mul_overflow(product[i], term.values[i], &next[i]);
      if (!fits)
        continue;
      factors.push_back(&term);
      auto found = multiple(values, next, factors, k, left - 1);
      factors.pop_back();
      if (found)
        return found;
    }
    return std::nullopt;
  }

  static SizeExpression product_of(const Factors& factors) {
    auto product = factors.front()->expression;
    for (size_t k = 1; k < factors.size(); ++k)
      product = product.joined(SizeExpression::multiply, factors[k]->expression);
    return product;
  }

  static std::optional<SizeExpression> scaled(
      const Values& values, const Values& product, const Factors& factors) {
    const auto is_times = [](const Values& a, const Values& b, int64_t k) {
      for (size_t i = 0; i < a.size(); ++i) {
        int64_t times = 0;
        if (__builtin_mul_overflow(b[i], k, &times) || a[i] != times)
          return false;
      }
      return true;
    };
    const auto a = values.front(), b = product.front();
    if (a <= 0 || b <= 0)
      return std::nullopt;
    if (a % b == 0 && is_times(values, product, a / b)) {
      return a == b ? product_of(factors)
                    : product_of(factors).joined(
                          SizeExpression::multiply,
                          SizeExpression::of(SizeExpression::constant, a / b));
    }
    if (b % a == 0 && is_times(product, values, b / a))
      return product_of(factors).joined(
          SizeExpression::exactly, SizeExpression::of(SizeExpression::constant, b / a));
    return std::nullopt;
  }

  std::optional<SizeExpression> sum(const Values& values, bool made) const {
    std::optional<SizeExpression> found;
    each_sum(values, made, [&](SizeExpression one) {
      found = std::move(one);
      return false;
    });
    return found;
  }

  // Calls `take` with each sum that gives `values`, until it is false.
  template <class Take>
  void each_sum(const Values& values, bool made, const Take& take) const {
    for (const auto& term : terms_) {
      const auto step = values.front() - term.values.front();
      bool same = made || std::abs(step) <= kStep;
      for (size_t i = 0; i < values.size(); ++i)
        same = same && values[i] - term.values[i] == step;
      const auto constant = SizeExpression::of(SizeExpression::constant, step);
      if (same && !take(term.expression.joined(SizeExpression::add, constant)))
        return;
    }
    const auto minus = SizeExpression::of(SizeExpression::constant, -1);
    for (const auto& a : terms_) {
      for (const auto& b : terms_) {
        bool plus = made, less = made;
        for (size_t i = 0; i < values.size(); ++i) {
          plus = plus && values[i] == a.values[i] + b.values[i];
          less = less && values[i] == a.values[i] - b.values[i];
        }
        if (plus && !take(a.expression.joined(SizeExpression::add, b.expression)))
          return;
        const auto negative = b.expression.joined(SizeExpression::multiply, minus);
        if (less && !take(a.expression.joined(SizeExpression::add, negative)))
          return;
      }
    }
  }

  std::vector<Term> terms_;
};

// Whether two expressions say the same, in other words. Sums of products that are equal at places
// far apart are.
bool always_equal(const SizeExpression& a, const SizeExpression& b, size_t symbols) {
  Values values(symbols);
  for (int64_t seed = 1; seed <= 3; ++seed) {
    for (size_t k = 0; k < symbols; ++k)
      values[k] = 1000 + (seed * 7919 + static_cast<int64_t>(k + 1) * seed * 104729) % 9973;
    const auto x = a.evaluate(values);
    if (!x || x != b.evaluate(values))
      return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<int64_t>> SizeClaim::symbols_of(c10::ArrayRef<int64_t> list) const {
  if (list.size() > numbers.size())
    return std::nullopt;
  std::vector<int64_t> values;
  values.reserve(symbols.size());
  for (const auto place : symbols) {
    if (place >= list.size() || list[place] < 2)
      return std::nullopt;
    values.push_back(list[place]);
  }
  for (size_t k = 0; k < list.size(); ++k) {
    // Most are constants.
    const auto& words = numbers[k].words;
    if (words.size() == 2 && words[0] == SizeExpression::constant) {
      if (words[1] != list[k])
        return std::nullopt;
    } else if (numbers[k].evaluate(values) != list[k]) {
      return std::nullopt;
    }
  }
  for (const auto& reason : reasons) {
    if (reason.expression.evaluate(values) != numbers[reason.place].evaluate(values))
      return std::nullopt;
  }
  return values;
}

bool is_sound(const SizeClaim& claim) {
  const auto is_place = [&](auto place) { return place < claim.numbers.size(); };
  return claim.seen.size() == claim.numbers.size() &&
         std::all_of(claim.symbols.begin(), claim.symbols.end(), is_place) &&
         std::all_of(
             claim.reasons.begin(),
             claim.reasons.end(),
             [&](const auto& reason) { return is_place(reason.place); }) &&
         claim.symbols_of(claim.seen).has_value();
}

std::optional<SizeClaim> claim_of(
    c10::ArrayRef<std::vector<int64_t>> lists, const std::vector<bool>& made, bool made_follow) {
  SizeClaim claim;
  claim.seen = lists.back();
  claim.numbers.resize(claim.seen.size());
  Search search;
  const auto values_at = [&](size_t place) {
    Values values;
    for (const auto& list : lists)
      values.push_back(list[place]);
    return values;
  };
  const auto enter = [&](size_t place) {
    const auto values = values_at(place);
    auto found = search.explain(values, made[place]);
    if (!found) {
      // A symbol is at least 2: what 0 and 1 mean to an op is no matter of size.
      const auto least = *std::min_element(values.begin(), values.end());
      if (least < 2 || (made_follow && made[place]))
        return false;
      found =
          SizeExpression::of(SizeExpression::symbol, static_cast<int64_t>(claim.symbols.size()));
      claim.symbols.push_back(static_cast<uint32_t>(place));
    }
    if (!is_constant(values)) {
      // Padding makes a width 4 larger, and all heights were the widths less 2, say.
      if (made_follow && made[place]) {
        for (auto& expression : search.explain_each_way(values)) {
          if (!always_equal(*found, expression, claim.symbols.size()))
            claim.reasons.push_back({static_cast<uint32_t>(place), std::move(expression)});
        }
      }
      search.add(values, *found);
    } else if (made_follow && made[place]) {
      for (auto& expression : search.explain_constant(values))
        claim.reasons.push_back({static_cast<uint32_t>(place), std::move(expression)});
    }
    claim.numbers[place] = std::move(*found);
    return true;
  };
  // The small ones first: a length is a symbol, and not its product with something.
  std::vector<size_t> given;
  for (size_t place = 0; place < made.size(); ++place) {
    if (!made[place] && !is_constant(values_at(place)))
      given.push_back(place);
  }
  std::stable_sort(
      given.begin(), given.end(), [&](auto a, auto b) { return claim.seen[a] < claim.seen[b]; });
  for (const auto place : given) {
    if (!enter(place))
      return std::nullopt;
  }
  for (size_t place = 0; place < made.size(); ++place) {
    if (claim.numbers[place].words.empty() && !enter(place))
      return std::nullopt;
  }
  return claim;
}

}  // namespace tenon
