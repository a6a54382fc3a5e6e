// A collective in flight: the host backend's work on host tensors, as work on the device's.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "distributed/host_tensors.h"

namespace tenon {

// Tells in a sentence why a collective may have failed, on any thread; nothing: nobody knows.
using Explain = std::function<std::string()>;

class HostWork final : public c10d::Work {
 public:
  // `results` are what its future gives: tensors of the device, or lists of them. `explain` is
  // asked where it ends with an error.
  HostWork(
      c10::intrusive_ptr<c10d::Work> host,
      std::shared_ptr<HostTensors> tensors,
      c10::IValue results,
      Explain explain);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  const c10::intrusive_ptr<c10d::Work> host_;
  const std::shared_ptr<HostTensors> tensors_;
  const c10::IValue results_;
  const Explain explain_;
  std::mutex future_mutex_;  // not of forks: a child has no part in its parent's groups
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tenon
