// Arguments of calls as plain data.
#pragma once

#include <string>
#include <vector>

#include "runtime/archive.h"

namespace tenon {

// A number, a text, a list of these, or nothing: what stands in a file for an argument.
struct Value {
  enum class Kind : int {
    nothing,
    integer,
    real,
    truth,
    text,
    list,
    undefined,  // a tensor that is none
    number,     // a tensor without dimensions: its dtype and the bits of a double or an int64
    device,     // by name
    complex     // with a dtype where it is a tensor
  };
  Kind kind = Kind::nothing;
  int64_t integer = 0;  // also a truth, the bits of a number, the number of a list's element type
  double real = 0, imaginary = 0;
  DType dtype = kNoDType;
  bool wrapped = false;  // a number that came from Python
  std::string text;      // also a device
  std::vector<Value> elements;
};

// An argument of a call that is known but for its memory: a constant, a tensor, a number that is
// given when the call runs, or a list of these.
struct Argument {
  enum class Kind : int { constant, tensor, number, list } kind = Kind::constant;
  Value value;  // a number: one of the same dtype; a list: an empty one
  std::vector<Argument> elements;
};

template <class Archive>
void fields(Archive& archive, Value& x) {
  archive(x.kind);
  switch (x.kind) {
    case Value::Kind::nothing:
    case Value::Kind::undefined:
      return;
    case Value::Kind::integer:
    case Value::Kind::truth:
      return archive(x.integer);
    case Value::Kind::real:
      return archive(x.real);
    case Value::Kind::text:
    case Value::Kind::device:
      return archive(x.text);
    case Value::Kind::number:
      return archive(x.dtype, x.integer, x.wrapped);
    case Value::Kind::complex:
      return archive(x.dtype, x.real, x.imaginary, x.wrapped);
    case Value::Kind::list:
      archive(x.integer);
      if constexpr (Archive::reads)
        archive.within(x.elements);
      else
        archive(x.elements);
      return;
  }
  fail(ErrorKind::damaged, "no value");
}

template <class Archive>
void fields(Archive& archive, Argument& x) {
  archive(x.kind, x.value);
  if constexpr (Archive::reads)
    archive.within(x.elements);
  else
    archive(x.elements);
}

}  // namespace tenon
