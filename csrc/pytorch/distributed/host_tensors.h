// Host tensors that stand for those of a collective: over the device's own memory where the host
// reaches it, else copies in pinned memory. What these hold is brought back when the collective is
// over.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <optional>
#include <vector>

namespace tenon {

class HostTensors {
 public:
  // `collective` is for errors.
  explicit HostTensors(const char* collective) : collective_(collective) {}
  HostTensors(const HostTensors&) = delete;
  HostTensors& operator=(const HostTensors&) = delete;

  // What the collective does with a tensor: `updates` reads it, and writes all of it or a part.
  enum class Use { reads, writes, updates };

  // Submits what was recorded of a tensor, waits for it, and raises its error. The host tensor
  // keeps the memory until it ends. Raises where tensors are on different devices.
  at::Tensor to_host(const at::Tensor& tensor, Use use);
  std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors, Use use);
  std::vector<std::vector<at::Tensor>> to_host(
      const std::vector<std::vector<at::Tensor>>& lists, Use use);

  // The collective has ended well: copies to the device what was written elsewhere, and what was
  // replaced as a whole is good again. Once; on any thread.
  void bring_back();

  // Of the tensors; none was given: nothing.
  std::optional<c10::Device> device() const {
    return device_;
  }

 private:
  struct Copy {
    at::Tensor device, host;
  };
  at::Tensor over_memory_of(const at::Tensor& tensor, Use use);
  at::Tensor copy_of(const at::Tensor& tensor, Use use);

  const char* collective_;
  std::optional<c10::Device> device_;
  std::mutex mutex_;  // not of forks: a child has no part in its parent's groups
  std::vector<Copy> written_;
  std::vector<at::Tensor> replaced_;  // where the host reaches them, as a whole
};

}  // namespace tenon
