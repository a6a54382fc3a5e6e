// What makes two calls of an op the same: the op, the layouts of its tensors, which of them share a
// storage, and its other arguments. Calls with equal keys have results of equal layouts.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

#include "record/numbers.h"
#include "record/op_sizes.h"
#include "runtime/hash.h"

namespace tenon {

// Strided memory that holds the numbers that the tensor does, and no Python object's say in it.
bool is_recordable(const at::Tensor& tensor);
// The arguments with memory that holds their numbers for those that are the conjugate or the
// negative of theirs; none where there is nothing to do, or one of these is written.
std::vector<c10::IValue> as_memory_has_them(
    c10::ArrayRef<c10::IValue> arguments, const std::vector<bool>& written);

class OpKey {
 public:
  // Takes in the arguments of a call. False for a call that is not recorded: no tensor of the
  // device, or one that is not plain strided memory, tensors of several devices, a generator.
  // With `open_scalars` the values of numbers are left out of the key: they are run-time values.
  // With `differing`, by argument, it is the key of all calls that differ from this one in sizes
  // alone: sizes, strides and offsets from 2 on, and whole numbers, are left out of it where that
  // lets them differ.
  bool build(
      c10::ArrayRef<c10::IValue> arguments,
      const std::vector<NumberArgument>& numbers,
      bool open_scalars,
      const std::vector<Differing>* differing = nullptr);

  // One more size that differs, for a key without sizes.
  void add_size(int64_t size) {
    put_size(size, true);
  }

  uint64_t hash() const {
    return hash_;
  }
  const std::vector<int64_t>& words() const {
    return words_;
  }
  c10::DeviceIndex device() const {
    return device_;
  }
  // The device's tensors among the arguments, in order. They live as long as the arguments do.
  const std::vector<const at::Tensor*>& tensors() const {
    return tensors_;
  }
  // The values of the numbers among the arguments, in order: bits of a double or of an int64.
  const std::vector<int64_t>& scalars() const {
    return scalars_;
  }
  // Whether two of the tensors show different parts of one storage.
  bool shares_parts() const;
  // What was left out of a key without sizes, in order.
  const std::vector<int64_t>& sizes() const {
    return sizes_;
  }

 private:
  void clear();
  bool add(const c10::IValue& value, bool open_scalars);
  bool add_tensor(const at::Tensor& tensor, bool open_scalars);
  void add_number(int64_t kind, int64_t bits, bool open);
  void add_complex(c10::complex<double> value);
  void put_size(int64_t size, bool differs);
  void put_order(const at::Tensor& tensor);
  void put(int64_t word) {
    words_.push_back(word);
    hash_ = mixed(hash_, word);
  }

  std::vector<int64_t> words_;
  std::vector<const at::Tensor*> tensors_;
  std::vector<const void*> storages_;
  std::vector<int64_t> scalars_;
  std::vector<int64_t> sizes_;
  bool without_sizes_ = false;
  bool shares_ = false;  // a storage has come twice
  // Of the argument in work.
  Differing differing_ = Differing::kNothing;
  NumberArgument number_;
  uint64_t hash_ = 0;
  c10::DeviceIndex device_ = -1;
};

}  // namespace tenon
