#include "record/op_rules.h"

#include <algorithm>
#include <unordered_map>

namespace tenon {
namespace {

using c10::FunctionSchema;

struct RulesOfName {
  OpRule rule;
  std::vector<std::pair<std::string, OpRule>> overloads;
};

// By name; the names last as long as the process.
std::unordered_map<std::string_view, RulesOfName>& rules() {
  static auto* instance = new std::unordered_map<std::string_view, RulesOfName>();
  return *instance;
}

bool g_complete = false;  // while the package is loaded, before any op of the device runs

// By the name of an op, or that of the functional op whose in-place form it is.
const RulesOfName* find_rules(std::string_view name) {
  auto found = rules().find(name);
  if (found == rules().end() && name.back() == '_') {
    name.remove_suffix(1);
    found = rules().find(name);
  }
  return found == rules().end() ? nullptr : &found->second;
}

}  // namespace

void set_op_rule(
    const std::vector<std::string>& ops, const std::string& overload, const OpRule& rule) {
  TORCH_CHECK(!g_complete, "the rules of ops are given while torch_tenon is loaded, not later");
  for (const auto& op : ops) {
    auto found = rules().find(op);
    if (found == rules().end())
      found = rules().emplace(*new std::string(op), RulesOfName()).first;
    if (overload.empty())
      found->second.rule = rule;
    else
      found->second.overloads.emplace_back(overload, rule);
  }
}

void op_rules_are_complete() {
  g_complete = true;
}

const OpRule& op_rule(std::string_view op) {
  static const auto* none = new OpRule();
  const auto dot = op.find('.');
  const auto overload = dot == op.npos ? std::string_view("default") : op.substr(dot + 1);
  const auto* found = find_rules(op.substr(0, dot));
  if (found == nullptr)
    return *none;
  for (const auto& [known, rule] : found->overloads) {
    if (known == overload)
      return rule;
  }
  return found->rule;
}

bool is_host_argument(const c10::FunctionSchema& schema, const std::string& argument) {
  const auto* found = find_rules(schema.name());
  const auto names = [&](const OpRule& rule) {
    return std::count(rule.host_arguments.begin(), rule.host_arguments.end(), argument) > 0;
  };
  return found != nullptr &&
         (names(found->rule) ||
          std::any_of(found->overloads.begin(), found->overloads.end(), [&](const auto& overload) {
            return names(overload.second);
          }));
}

bool is_foreign(const c10::OperatorHandle& op) {
  const auto space = op.schema().getNamespace();
  return space != "aten" && space != "tenon" && space != "mkldnn";
}

bool is_written(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  return alias != nullptr && alias->isWrite();
}

std::vector<bool> arguments_written(const c10::OperatorHandle& op) {
  const auto& rule = op_rule(toString(op.operator_name()));
  std::vector<bool> found;
  for (const auto& argument : op.schema().arguments()) {
    found.push_back(
        is_written(argument) ||
        std::count(rule.mutates.begin(), rule.mutates.end(), argument.name()) > 0);
  }
  return found;
}

std::vector<bool> arguments_replaced(const c10::OperatorHandle& op) {
  const auto& rule = op_rule(toString(op.operator_name()));
  std::vector<bool> found;
  for (const auto& argument : op.schema().arguments())
    found.push_back(is_written(argument) && (rule.replaces || argument.is_out()));
  return found;
}

std::vector<int64_t> arguments_returned(const FunctionSchema& schema) {
  std::vector<int64_t> found;
  for (const auto& result : schema.returns()) {
    found.push_back(-1);
    for (size_t i = 0; is_written(result) && i < schema.arguments().size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets())
        found.back() = static_cast<int64_t>(i);
    }
  }
  return found;
}

bool makes_views(const FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !is_written(result);
  });
}

}  // namespace tenon
