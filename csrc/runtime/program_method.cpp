// Whether a method of a program's file fits together.

#include <algorithm>

#include "runtime/plan_check.h"
#include "runtime/program_sizes.h"

namespace tenon {
namespace {

class MethodCheck {
 public:
  MethodCheck(Method& method, const ProgramFile& file) : method_(method), file_(file) {}

  void check() {
    check_data(method_.name.find('\0') == std::string::npos, "no name of a method");
    check_symbols();
    const std::span<const Symbol> symbols = method_.symbols;
    for (const auto& tensor : method_.inputs)
      check_tensor(tensor, symbols.first(given_));
    for (const auto& tensor : method_.outputs)
      check_tensor(tensor, symbols);
    for (const auto& check : method_.checks) {
      check_expression(check.left, symbols);
      check_expression(check.right, symbols);
      using Comparison = SizeCheck::Comparison;
      check_data(
          check.comparison >= Comparison::equal && check.comparison <= Comparison::less,
          "{}: no comparison",
          method_.name);
    }
    find_symbols();
    check_plan_of_method();
    check_outputs();
  }

 private:
  // Sizes of inputs come first, and then what is computed of the symbols before it.
  void check_symbols() {
    const std::span<const Symbol> symbols = method_.symbols;
    while (given_ < symbols.size() && symbols[given_].value.words.empty())
      ++given_;
    for (size_t k = 0; k < symbols.size(); ++k) {
      const auto& symbol = symbols[k];
      const bool is_given = k < given_;
      check_data(
          symbol.least >= (is_given ? 0 : -Symbol::kNoBound) && symbol.least <= symbol.greatest &&
              symbol.greatest <= Symbol::kNoBound,
          "{}: the bounds of {} allow nothing",
          method_.name,
          symbol.name);
      if (!is_given)
        check_expression(symbol.value, symbols.first(k));
    }
  }

  void check_expression(const SizeExpression& value, std::span<const Symbol> symbols) const {
    check_data(bounds_of(value, symbols).has_value(), "{}: a size is no expression", method_.name);
  }

  void check_tensor(const SizedTensor& tensor, std::span<const Symbol> symbols) const {
    check_data(
        item_size(tensor.dtype) > 0 && tensor.sizes.size() <= TENON_MOST_DIMENSIONS,
        "{}: '{}' is no tensor",
        method_.name,
        tensor.name);
    for (const auto& size : tensor.sizes)
      check_expression(size, symbols);
  }

  void find_symbols() {
    constexpr size_t kNone = SIZE_MAX;
    method_.found = std::vector<Method::Found>(given_, {kNone, 0});
    for (size_t k = 0; k < method_.inputs.size(); ++k) {
      const auto& sizes = method_.inputs[k].sizes;
      for (size_t d = 0; d < sizes.size(); ++d) {
        const auto& words = sizes[d].words;
        if (words.size() != 2 || words[0] != SizeExpression::symbol)
          continue;
        auto& found = method_.found[static_cast<size_t>(words[1])];
        if (found.input == kNone)
          found = {k, d};
      }
    }
    for (size_t k = 0; k < method_.found.size(); ++k)
      check_data(
          method_.found[k].input != kNone,
          "{}: no input has the size {}",
          method_.name,
          method_.symbols[k].name);
  }

  void check_source(const Source& source, bool is_of_plan) const {
    using Kind = Source::Kind;
    size_t count = 0;
    switch (source.kind) {
      case Kind::input:
        count = method_.inputs.size();
        break;
      case Kind::weight:
        count = file_.weight_list.size();
        break;
      case Kind::state:
        count = file_.state_list.size();
        break;
      case Kind::symbol:
        count = is_of_plan ? method_.symbols.size() : 0;
        break;
      case Kind::output:
        count = is_of_plan ? 0 : method_.outputs.size();
        break;
    }
    check_data(source.number < count, "{}: no tensor {}", method_.name, source.number);
  }

  void check_plan_of_method() const {
    auto& plan = method_.plan;
    for (const auto& kernel : plan.plan.kernels)
      check_data(
          kernel.checksum == 0 && (kernel.object.empty() || file_.source_of(kernel) != nullptr),
          "{}: a kernel that is not in the program",
          method_.name);
    check_plan(plan, /*calls=*/0, /*in_files=*/false);
    check_data(
        plan.plan.inputs.size() == method_.plan_inputs.size() &&
            plan.plan.outputs.size() == method_.plan_outputs.size(),
        "{}: its plan has other inputs and outputs",
        method_.name);
    for (const auto& source : method_.plan_inputs)
      check_source(source, /*is_of_plan=*/true);
  }

  // Each output is made once, and a copy of it comes after that.
  void check_outputs() const {
    Flags is_made(method_.outputs.size());
    const auto make = [&](size_t output) {
      check_data(
          output < is_made.size() && !is_made[output],
          "{}: output {} is made more than once, or is none",
          method_.name,
          output);
      is_made[output] = true;
    };
    for (const auto output : method_.plan_outputs)
      make(output);
    for (const auto& [output, source] : method_.copies) {
      check_source(source, /*is_of_plan=*/false);
      check_data(
          source.kind != Source::Kind::output || is_made[source.number],
          "{}: a copy of an output that is not made yet",
          method_.name);
      make(output);
    }
    check_data(
        std::ranges::find(is_made, false) == is_made.end(),
        "{}: nothing makes one of its outputs",
        method_.name);
  }

  Method& method_;
  const ProgramFile& file_;
  size_t given_ = 0;  // how many symbols are sizes of inputs
};

}  // namespace

void check_method(Method& method, const ProgramFile& file) {
  MethodCheck(method, file).check();
}

}  // namespace tenon
