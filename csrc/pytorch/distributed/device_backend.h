// Collectives on tensors of the device, by a backend that knows tensors of the host: Gloo, MPI.
//
// The host's tensors lie over the device's memory where the host reaches it. A collective begins
// when what was recorded of its tensors has run; what it writes is there when its work is over.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/host_work.h"

namespace tenon {

class DeviceBackend final : public c10d::Backend {
 public:
  template <class T>
  using Ref = c10::intrusive_ptr<T>;
  using Work = c10d::Work;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;

  // `explain` tells of the errors that collectives end with.
  DeviceBackend(Ref<c10d::Backend> host, Explain explain);

  const std::string getBackendName() const override;
  Ref<Options> getBackendOptions() override;
  bool supportsSplitting() const override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  void enableCollectivesTiming() override;
  Ref<Backend> split(
      const Ref<c10d::Store>& store,
      const std::vector<int>& ranks,
      const Ref<Options>& opts) override;
  Ref<Backend> merge(
      const Ref<c10d::Store>& store,
      const Ref<Options>& opts,
      const int& rank,
      const int& size) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  Ref<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  Ref<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Ref<Work> allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Ref<Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  Ref<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  Ref<Work> allgather(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Ref<Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  Ref<Work> allgather_coalesced(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Ref<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Ref<Work> gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  Ref<Work> scatter(
      Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  Ref<Work> reduce_scatter(
      Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override;
  Ref<Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  Ref<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override;
  Ref<Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_counts,
      std::vector<int64_t>& input_counts,
      const c10d::AllToAllOptions& opts) override;
  Ref<Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  Ref<Work> send(Tensors& tensors, int dst_rank, int tag) override;
  Ref<Work> recv(Tensors& tensors, int src_rank, int tag) override;
  Ref<Work> recvAnysource(Tensors& tensors, int tag) override;
  Ref<Work> barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  // One of the host's collectives on tensors that it uses so, given what is left of its arguments.
  template <class Begin, class... Rest>
  Ref<Work> on(
      const char* name, Begin begin, HostTensors::Use use, Tensors& tensors, const Rest&... rest);
  // ... that reads some tensors and writes others.
  template <class Begin, class Outputs, class Inputs, class... Rest>
  Ref<Work> from_to(const char* name, Begin begin, Outputs& outputs, Inputs& inputs, Rest&... rest);
  Ref<Work> work(Ref<Work> host, std::shared_ptr<HostTensors> tensors, c10::IValue results) const;

  const Ref<c10d::Backend> host_;
  const Explain explain_;
};

}  // namespace tenon
