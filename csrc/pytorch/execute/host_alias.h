// A tensor of the host over memory that somebody else keeps, for an argument of a kernel. It costs
// less than a new tensor, since it is used again for another argument.
#pragma once

#include <ATen/core/Tensor.h>

namespace tenon {

class HostAlias final : public c10::TensorImpl {
 public:
  // A tensor whose implementation is one of these.
  static at::Tensor make();
  static HostAlias& of(const at::Tensor& made) {
    return static_cast<HostAlias&>(*made.unsafeGetTensorImpl());
  }

  explicit HostAlias(c10::Storage storage);
  // From now on it has what the plain tensor `like` has but for its device, its names and whatever
  // autograd knows of it: the memory is at `data`.
  void show(const c10::TensorImpl& like, void* data, size_t nbytes);
  // Has nobody kept it, its storage, or an alias of that?
  bool is_free() const;

 private:
  const c10::StorageImpl* made_with_;
};

}  // namespace tenon
