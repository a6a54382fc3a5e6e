// Plans of methods on memory that the host reaches.

#include <cstring>

#include "runtime/program_runner.h"

namespace tenon {
namespace {

// Memory for a run on this processor.
class HostRun final : public RunHost {
 public:
  HostRun(const MethodPlan& plan, RunMemory& memory)
      : given(plan.data.slots.size()),
        plan_(plan),
        memory_(memory),
        piece_(memory.take(plan.placement.nbytes)) {}
  ~HostRun() override {
    memory_.give_back(piece_);
  }
  HostRun(const HostRun&) = delete;
  HostRun& operator=(const HostRun&) = delete;

  void* arena(size_t) override {
    return piece_.start;
  }
  void* allocate(size_t slot, size_t nbytes) override {
    switch (plan_.data.slots[slot].kind) {
      case Slot::Kind::output:
        return given[slot];
      case Slot::Kind::block:
        return static_cast<char*>(piece_.start) + plan_.placement.offsets[slot];
      default:
        return make(slot, nbytes);
    }
  }
  void release(size_t slot) override {
    if (plan_.data.slots[slot].kind == Slot::Kind::external)
      made_[slot] = nullptr;
  }
  void call(size_t step, std::span<void* const> tensors, std::span<void*> results) override {
    const auto& call = *std::get_if<CallStep>(&plan_.data.steps[step].work);
    for (size_t k = 0; k < results.size(); ++k) {
      const auto& result = call.results[k];
      if (result && results[k] == nullptr)
        results[k] = make(result->slot, result->layout.nbytes);
    }
    call.function(call, tensors, results);
  }

  std::vector<void*> given;  // by slot: the caller's memory

 private:
  void* make(size_t slot, size_t nbytes) {
    if (made_.empty())
      made_ = std::vector<std::shared_ptr<void>>(plan_.data.slots.size());
    return (made_[slot] = aligned_memory(nbytes)).get();
  }

  const MethodPlan& plan_;
  RunMemory& memory_;
  const RunMemory::Piece piece_;
  std::vector<std::shared_ptr<void>> made_;  // by slot: what calls made
};

class HostRunner final : public ProgramRunner {
 public:
  void put(const ProgramFile& file) override {
    file_ = &file;
    weights_ = std::vector<const void*>(file.weight_list.size());
    state_ = std::vector<void*>(file.state_list.size());
    for (size_t k = 0; k < weights_.size(); ++k) {
      const auto& weight = file.weight_list[k];
      weights_[k] = aligned(file.bytes_of(weight), weight.tensor.layout.dtype);
    }
    for (size_t k = 0; k < state_.size(); ++k) {
      memory_.push_back(memory_of_zeros(file.state_list[k].tensor.layout.nbytes));
      state_[k] = memory_.back().get();
    }
    reset();
  }

  void reset() override {
    for (size_t k = 0; k < state_.size(); ++k) {
      const auto& [tensor, weight] = file_->state_list[k];
      if (tensor.layout.nbytes == 0)
        continue;
      if (weight >= 0)
        std::memcpy(state_[k], weights_[static_cast<size_t>(weight)], tensor.layout.nbytes);
      else if (!state_is_new_)
        std::memset(state_[k], 0, tensor.layout.nbytes);
    }
    state_is_new_ = false;
  }

  void run(
      const MethodPlan& plan,
      std::span<const void* const> inputs,
      std::span<void* const> outputs) override {
    const auto& method = *plan.method;
    const auto& data = plan.data;
    const auto address = [&](const Source& source) -> const void* {
      switch (source.kind) {
        case Source::Kind::input:
          return inputs[source.number];
        case Source::Kind::weight:
          return weights_[source.number];
        case Source::Kind::state:
          return state_[source.number];
        case Source::Kind::symbol:
          return &plan.symbols[source.number];
        case Source::Kind::output:
          return outputs[source.number];
      }
      return nullptr;
    };
    HostRun host(plan, run_memory_);
    for (size_t k = 0; k < data.outputs.size(); ++k)
      host.given[data.outputs[k]] = outputs[method.plan_outputs[k]];
    Run run(data, *queue_, /*at_once=*/true, host);
    for (size_t k = 0; k < data.inputs.size(); ++k)
      run.place(data.inputs[k], const_cast<void*>(address(method.plan_inputs[k])));
    run.execute();
    raise_first(run.failures()());
    for (const auto& [output, source] : method.copies) {
      const auto nbytes = plan.outputs[output].nbytes;
      if (nbytes > 0)
        std::memmove(outputs[output], address(source), nbytes);
    }
  }

 private:
  // In a file of somebody else's a weight may lie where its elements are not aligned.
  const void* aligned(std::string_view bytes, DType dtype) {
    if (is_aligned(bytes.data(), dtype))
      return bytes.data();
    void* const copy = own(bytes.size());
    std::memcpy(copy, bytes.data(), bytes.size());
    return copy;
  }
  void* own(size_t nbytes) {
    return memory_.emplace_back(aligned_memory(nbytes)).get();
  }

  const ProgramFile* file_ = nullptr;
  const std::unique_ptr<Queue> queue_ = host_queue();
  std::vector<const void*> weights_;
  std::vector<void*> state_;
  std::vector<std::shared_ptr<void>> memory_;  // of the state, and of weights that were not aligned
  bool state_is_new_ = true;                   // nothing was written there
  RunMemory run_memory_;
};

}  // namespace

std::unique_ptr<ProgramRunner> host_runner() {
  return std::make_unique<HostRunner>();
}

}  // namespace tenon
