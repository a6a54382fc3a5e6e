#include "distributed/device_backend.h"

namespace tenon {
namespace {

using Use = HostTensors::Use;

std::shared_ptr<HostTensors> tensors_of(const char* collective) {
  return std::make_shared<HostTensors>(collective);
}

// What the future of such a collective gives: the list where there is one.
c10::IValue lists(const std::vector<std::vector<at::Tensor>>& outputs) {
  if (outputs.empty())
    return c10::List<at::Tensor>();
  if (outputs.size() == 1)
    return outputs.front();
  return outputs;
}

}  // namespace

template <class T>
using Ref = c10::intrusive_ptr<T>;
using c10d::Work;

DeviceBackend::DeviceBackend(Ref<c10d::Backend> host, std::shared_ptr<RollCall> ranks)
    : Backend(host->getRank(), host->getSize()), host_(std::move(host)), ranks_(std::move(ranks)) {}

Ref<Work> DeviceBackend::work(
    Ref<Work> host, std::shared_ptr<HostTensors> tensors, c10::IValue results) const {
  return c10::make_intrusive<HostWork>(
      std::move(host), std::move(tensors), std::move(results), ranks_);
}

const std::string DeviceBackend::getBackendName() const {
  return host_->getBackendName();
}

Ref<c10d::Backend::Options> DeviceBackend::getBackendOptions() {
  return host_->getBackendOptions();
}

bool DeviceBackend::supportsSplitting() const {
  return host_->supportsSplitting();
}

void DeviceBackend::setTimeout(std::chrono::milliseconds timeout) {
  host_->setTimeout(timeout);
}

void DeviceBackend::setSequenceNumberForGroup() {
  host_->setSequenceNumberForGroup();
}

uint64_t DeviceBackend::getSequenceNumberForGroup() {
  return host_->getSequenceNumberForGroup();
}

void DeviceBackend::enableCollectivesTiming() {
  host_->enableCollectivesTiming();
}

Ref<c10d::Backend> DeviceBackend::split(
    const Ref<c10d::Store>& store, const std::vector<int>& ranks, const Ref<Options>& opts) {
  auto part = host_->split(store, ranks, opts);
  return part ? c10::make_intrusive<DeviceBackend>(std::move(part), ranks_) : nullptr;
}

Ref<c10d::Backend> DeviceBackend::merge(
    const Ref<c10d::Store>& store, const Ref<Options>& opts, const int& rank, const int& size) {
  return c10::make_intrusive<DeviceBackend>(host_->merge(store, opts, rank, size), ranks_);
}

c10d::ErrorType DeviceBackend::getError() {
  return host_->getError();
}

void DeviceBackend::abort() {
  host_->abort();
}

void DeviceBackend::shutdown() {
  host_->shutdown();
}

Ref<Work> DeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto kept = tensors_of("broadcast");
  auto host = kept->to_host(tensors, opts.rootRank == getRank() ? Use::reads : Use::writes);
  return work(host_->broadcast(host, opts), kept, tensors);
}

Ref<Work> DeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto kept = tensors_of("all_reduce");
  auto host = kept->to_host(tensors, Use::updates);
  return work(host_->allreduce(host, opts), kept, tensors);
}

Ref<Work> DeviceBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto kept = tensors_of("all_reduce");
  auto host = kept->to_host(tensors, Use::updates);
  return work(host_->allreduce_sparse(host, opts), kept, tensors);
}

Ref<Work> DeviceBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  const auto kept = tensors_of("all_reduce_coalesced");
  auto host = kept->to_host(tensors, Use::updates);
  return work(host_->allreduce_coalesced(host, opts), kept, tensors);
}

Ref<Work> DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto kept = tensors_of("reduce");
  auto host = kept->to_host(tensors, Use::updates);
  return work(host_->reduce(host, opts), kept, tensors);
}

Ref<Work> DeviceBackend::allgather(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const auto kept = tensors_of("all_gather");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->allgather(host, host_inputs, opts), kept, lists(outputs));
}

Ref<Work> DeviceBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  const auto kept = tensors_of("all_gather_into_tensor");
  auto host_input = kept->to_host(input, Use::reads);
  auto host = kept->to_host(output, Use::writes);
  return work(host_->_allgather_base(host, host_input, opts), kept, Tensors{output});
}

Ref<Work> DeviceBackend::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const auto kept = tensors_of("all_gather_coalesced");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->allgather_coalesced(host, host_inputs, opts), kept, lists(outputs));
}

Ref<Work> DeviceBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const auto kept = tensors_of("all_gather_into_tensor_coalesced");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->allgather_into_tensor_coalesced(host, host_inputs, opts), kept, outputs);
}

Ref<Work> DeviceBackend::gather(
    TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const auto kept = tensors_of("gather");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->gather(host, host_inputs, opts), kept, lists(outputs));
}

Ref<Work> DeviceBackend::scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) {
  const auto kept = tensors_of("scatter");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->scatter(host, host_inputs, opts), kept, outputs);
}

Ref<Work> DeviceBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  const auto kept = tensors_of("reduce_scatter");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->reduce_scatter(host, host_inputs, opts), kept, outputs);
}

Ref<Work> DeviceBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  const auto kept = tensors_of("reduce_scatter_tensor");
  auto host_input = kept->to_host(input, Use::reads);
  auto host = kept->to_host(output, Use::writes);
  return work(host_->_reduce_scatter_base(host, host_input, opts), kept, Tensors{output});
}

Ref<Work> DeviceBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  const auto kept = tensors_of("reduce_scatter_tensor_coalesced");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->reduce_scatter_tensor_coalesced(host, host_inputs, opts), kept, outputs);
}

Ref<Work> DeviceBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_counts,
    std::vector<int64_t>& input_counts,
    const c10d::AllToAllOptions& opts) {
  const auto kept = tensors_of("all_to_all_single");
  auto host_input = kept->to_host(input, Use::reads);
  auto host = kept->to_host(output, Use::writes);
  auto begun = host_->alltoall_base(host, host_input, output_counts, input_counts, opts);
  return work(std::move(begun), kept, Tensors{output});
}

Ref<Work> DeviceBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  const auto kept = tensors_of("all_to_all");
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host = kept->to_host(outputs, Use::writes);
  return work(host_->alltoall(host, host_inputs, opts), kept, outputs);
}

Ref<Work> DeviceBackend::send(Tensors& tensors, int dst_rank, int tag) {
  const auto kept = tensors_of("send");
  auto host = kept->to_host(tensors, Use::reads);
  return work(host_->send(host, dst_rank, tag), kept, tensors);
}

// A message may be shorter than the tensor that takes it.
Ref<Work> DeviceBackend::recv(Tensors& tensors, int src_rank, int tag) {
  const auto kept = tensors_of("recv");
  auto host = kept->to_host(tensors, Use::updates);
  return work(host_->recv(host, src_rank, tag), kept, tensors);
}

Ref<Work> DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  const auto kept = tensors_of("recv");
  auto host = kept->to_host(tensors, Use::updates);
  return work(host_->recvAnysource(host, tag), kept, tensors);
}

Ref<Work> DeviceBackend::barrier(const c10d::BarrierOptions& opts) {
  const auto kept = tensors_of("barrier");
  return work(host_->barrier(opts), kept, Tensors());
}

void DeviceBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  host_->monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace tenon
