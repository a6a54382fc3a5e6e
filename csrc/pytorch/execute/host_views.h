// Tensors of the device as the host's kernels see them, and the host's results as tensors of the
// device.
//
// A host view has the same sizes, strides and storage offset as the tensor it stands for. Two
// tensors that share a storage have host views that share one. On a target whose memory the host
// can reach, that host storage *is* the device's memory. On another one it is a copy, and what was
// written is copied back by `finish`.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace tenon {

class HostViews {
 public:
  explicit HostViews(c10::Device device) : device_(device) {}
  HostViews(const HostViews&) = delete;
  HostViews& operator=(const HostViews&) = delete;

  // The host view of a tensor of any layout: strided, conjugate, sparse, quantised, nested. A
  // tensor of the host is its own view. Settles what it reads, or, where the kernel writes it,
  // whatever uses it; raises the error of what it reads.
  enum class Use { reads, writes, replaces, replaces_part };
  at::Tensor to_host(const at::Tensor& tensor, Use use = Use::reads);

  // The other way. A result that lies in a host view's storage comes back as a view of the storage
  // behind it. Any other one becomes a storage of the device.
  at::Tensor to_device(const at::Tensor& host);

  // A kernel wrote to `host`, the view of `tensor`: takes over its sizes and strides (an `out=` may
  // be resized) and marks its storage to be written back.
  void written(const at::Tensor& tensor, const at::Tensor& host);

  // Call last, when all went well. Storages that the kernel replaced are taken over, and written
  // ones are copied back. An error that replaced contents had is gone. Without it nothing that a
  // failed kernel did reaches the device, where the host's memory is not the device's own.
  void finish();

  int64_t bytes_copied() const {
    return bytes_copied_;
  }

 private:
  struct View {
    at::Tensor device;  // lives as long as its address is a key
    at::Tensor host;
  };

  struct Pair {
    c10::Storage device;
    c10::Storage host;
    const void* host_data;  // where the host storage pointed when it was made
    bool replaced = false;  // the kernel writes all of it and reads nothing
    bool written = false;
  };

  const c10::Storage& host_storage(const c10::Storage& device, Use use);
  void note_use(const c10::StorageImpl& device, Use use);
  c10::Storage device_storage(const c10::Storage& host);
  void take_over(Pair& pair);

  c10::Device device_;
  std::unordered_map<const c10::StorageImpl*, Pair> by_device_;
  std::unordered_map<const c10::TensorImpl*, View> views_;
  // By the host's storage; values are device storages. `results_` keeps fresh host storages alive.
  std::unordered_map<const c10::StorageImpl*, c10::Storage> by_host_;
  std::vector<c10::Storage> results_;
  int64_t bytes_copied_ = 0;
};

// A tensor of the host over memory that somebody else keeps, for an argument of a kernel. It costs
// less than a new tensor, since it is used again for another argument.
class HostAlias final : public c10::TensorImpl {
 public:
  // A tensor whose implementation is one of these.
  static at::Tensor make();
  static HostAlias& of(const at::Tensor& made) {
    return static_cast<HostAlias&>(*made.unsafeGetTensorImpl());
  }

  explicit HostAlias(c10::Storage storage);
  // From now on it is as the plain tensor `like`, over the memory at `data`. Its device, its names
  // and what autograd knows of it are its own.
  void show(const c10::TensorImpl& like, void* data, size_t nbytes);
  // Whether nobody has kept it, its storage, or an alias of that.
  bool is_free() const;

 private:
  const c10::StorageImpl* made_with_;
};

}  // namespace tenon
