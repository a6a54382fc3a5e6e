#include "distributed/device_backend.h"

namespace tenon {
namespace {

using Use = HostTensors::Use;

// What the future of a collective gives: of lists the list where there is one.
c10::IValue results_of(const at::Tensor& output) {
  return std::vector<at::Tensor>{output};
}
c10::IValue results_of(const std::vector<at::Tensor>& outputs) {
  return outputs;
}
c10::IValue results_of(const std::vector<std::vector<at::Tensor>>& outputs) {
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

DeviceBackend::DeviceBackend(Ref<c10d::Backend> host, Explain explain)
    : Backend(host->getRank(), host->getSize()),
      host_(std::move(host)),
      explain_(std::move(explain)) {}

Ref<Work> DeviceBackend::work(
    Ref<Work> host, std::shared_ptr<HostTensors> tensors, c10::IValue results) const {
  return c10::make_intrusive<HostWork>(
      std::move(host), std::move(tensors), std::move(results), explain_);
}

template <class Begin, class... Rest>
Ref<Work> DeviceBackend::on(
    const char* name, Begin begin, Use use, Tensors& tensors, const Rest&... rest) {
  const auto kept = std::make_shared<HostTensors>(name);
  auto host = kept->to_host(tensors, use);
  return work(((*host_).*begin)(host, rest...), kept, results_of(tensors));
}

template <class Begin, class Outputs, class Inputs, class... Rest>
Ref<Work> DeviceBackend::from_to(
    const char* name, Begin begin, Outputs& outputs, Inputs& inputs, Rest&... rest) {
  const auto kept = std::make_shared<HostTensors>(name);
  auto host_inputs = kept->to_host(inputs, Use::reads);
  auto host_outputs = kept->to_host(outputs, Use::writes);
  return work(((*host_).*begin)(host_outputs, host_inputs, rest...), kept, results_of(outputs));
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
  return part ? c10::make_intrusive<DeviceBackend>(std::move(part), explain_) : nullptr;
}

Ref<c10d::Backend> DeviceBackend::merge(
    const Ref<c10d::Store>& store, const Ref<Options>& opts, const int& rank, const int& size) {
  return c10::make_intrusive<DeviceBackend>(host_->merge(store, opts, rank, size), explain_);
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
  return on(
      "broadcast",
      &Backend::broadcast,
      opts.rootRank == getRank() ? Use::reads : Use::writes,
      tensors,
      opts);
}

Ref<Work> DeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return on("all_reduce", &Backend::allreduce, Use::updates, tensors, opts);
}

Ref<Work> DeviceBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return on("all_reduce", &Backend::allreduce_sparse, Use::updates, tensors, opts);
}

Ref<Work> DeviceBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return on("all_reduce_coalesced", &Backend::allreduce_coalesced, Use::updates, tensors, opts);
}

Ref<Work> DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return on("reduce", &Backend::reduce, Use::updates, tensors, opts);
}

Ref<Work> DeviceBackend::allgather(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return from_to("all_gather", &Backend::allgather, outputs, inputs, opts);
}

Ref<Work> DeviceBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  return from_to("all_gather_into_tensor", &Backend::_allgather_base, output, input, opts);
}

Ref<Work> DeviceBackend::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return from_to("all_gather_coalesced", &Backend::allgather_coalesced, outputs, inputs, opts);
}

Ref<Work> DeviceBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return from_to(
      "all_gather_into_tensor_coalesced",
      &Backend::allgather_into_tensor_coalesced,
      outputs,
      inputs,
      opts);
}

Ref<Work> DeviceBackend::gather(
    TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  return from_to("gather", &Backend::gather, outputs, inputs, opts);
}

Ref<Work> DeviceBackend::scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) {
  return from_to("scatter", &Backend::scatter, outputs, inputs, opts);
}

Ref<Work> DeviceBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  return from_to("reduce_scatter", &Backend::reduce_scatter, outputs, inputs, opts);
}

Ref<Work> DeviceBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  return from_to("reduce_scatter_tensor", &Backend::_reduce_scatter_base, output, input, opts);
}

Ref<Work> DeviceBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return from_to(
      "reduce_scatter_tensor_coalesced",
      &Backend::reduce_scatter_tensor_coalesced,
      outputs,
      inputs,
      opts);
}

Ref<Work> DeviceBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_counts,
    std::vector<int64_t>& input_counts,
    const c10d::AllToAllOptions& opts) {
  return from_to(
      "all_to_all_single",
      &Backend::alltoall_base,
      output,
      input,
      output_counts,
      input_counts,
      opts);
}

Ref<Work> DeviceBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return from_to("all_to_all", &Backend::alltoall, outputs, inputs, opts);
}

Ref<Work> DeviceBackend::send(Tensors& tensors, int dst_rank, int tag) {
  return on("send", &Backend::send, Use::reads, tensors, dst_rank, tag);
}

// A message may be shorter than the tensor that takes it.
Ref<Work> DeviceBackend::recv(Tensors& tensors, int src_rank, int tag) {
  return on("recv", &Backend::recv, Use::updates, tensors, src_rank, tag);
}

Ref<Work> DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  return on("recv", &Backend::recvAnysource, Use::updates, tensors, tag);
}

Ref<Work> DeviceBackend::barrier(const c10d::BarrierOptions& opts) {
  const auto kept = std::make_shared<HostTensors>("barrier");
  return work(host_->barrier(opts), kept, Tensors());
}

void DeviceBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  host_->monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace tenon
