// Arguments and layouts of calls as plain data: docs/plan-file.md has the format.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "record/op_cache.h"
#include "record/sizes.h"
#include "runtime/value.h"

namespace tenon {

// The types of elements that lists of arguments have, in the order of their numbers in files.
std::vector<std::string> element_types();

// Numbers, texts, lists of them, nothing, devices and host tensors without dimensions; raises for
// anything else. With `any_number` the type of a number alone counts, and not which one it is.
Value value_of(const c10::IValue& value, bool any_number = false);
// Raises where the data is no such value.
c10::IValue value_from(const Value& data);
// Whether an argument of this type takes the value: a Scalar may be a truth value, which is no
// Number to TorchScript.
bool takes(const c10::Type& type, const c10::IValue& value);
ArgumentPlan argument_from(const Argument& data);

// An op's name and overload, on a line each; and the op that has them, or an error.
std::string name_of(const c10::OperatorHandle& op);
c10::OperatorHandle op_of(const std::string& name);

template <class Archive>
void fields(Archive& archive, c10::IValue& x) {
  if constexpr (Archive::reads) {
    Value data;
    archive(data);
    x = value_from(data);
  } else {
    archive(value_of(x));
  }
}

template <class Archive>
void fields(Archive& archive, ArgumentPlan& x) {
  if constexpr (Archive::reads) {
    Argument data;
    archive(data);
    x = argument_from(data);
  } else {
    archive(x.kind, value_of(x.value, x.kind == ArgumentPlan::number), x.elements);
  }
}

template <class Archive>
void fields(Archive& archive, SecondReason& x) {
  archive(x.place, x.expression);
}

template <class Archive>
void fields(Archive& archive, SizeClaim& x) {
  archive(x.symbols, x.numbers, x.reasons, x.seen);
}

template <class Archive>
void fields(Archive& archive, ResultPlan& x) {
  archive(x.argument, x.list, x.defined);
}

template <class Archive>
void fields(Archive& archive, CallResults& x) {
  archive(x.results, x.resized, x.made);
}

}  // namespace tenon
