#include "runtime/plan_format.h"

#include "runtime/run_memory.h"

namespace tenon {

template <class Archive>
void fields(Archive& archive, SlotTensor& x) {
  archive(x.slot, x.layout);
}

template <class Archive>
void fields(Archive& archive, Slot& x) {
  archive(x.kind, x.number, x.nbytes);
}

template <class Archive>
void fields(Archive& archive, StepFacts& x) {
  archive(x.detail, x.sizes, x.calls, x.bytes, x.operations);
}

template <class Archive>
void fields(Archive& archive, KernelName& x) {
  archive(x.object, x.symbol, x.checksum);
}

template <class Archive>
void fields(Archive& archive, KernelStep& x) {
  archive(x.kernel, x.slots, x.sizes, x.checks);
}

template <class Archive>
void fields(Archive& archive, CallStep& x) {
  archive(x.op, x.arguments, x.tensors, x.results, x.route, x.counted, x.call);
}

template <class Archive>
void fields(Archive& archive, Step& x) {
  size_t kind = 0;
  const auto facts = shared<StepFacts>();
  x.facts = facts;
  archive(x.name, x.allocated, x.released, kind, *facts);
  check_data(kind <= 1, "a step is a kernel or a call");
  if (kind == 0)
    archive(x.work.template emplace<KernelStep>());
  else
    archive(x.work.template emplace<CallStep>());
}

// In memory of its own, where vectors of any processor may begin.
template <class Archive>
void fields(Archive& archive, Constant& x) {
  archive(x.layout.dtype, x.layout.sizes);
  const auto bytes = archive.text();
  auto strides = dense_strides(x.layout.sizes);
  check_data(strides.has_value(), "a constant is too large");
  x.layout.strides = std::move(*strides);
  x.layout.nbytes = bytes.size();
  check_data(is_sound(x.layout), "a constant of another size");
  x.keeper = aligned_memory(bytes.size());
  x.data = x.keeper.get();
  if (!bytes.empty())
    std::memcpy(x.data, bytes.data(), bytes.size());
}

// Of each kernel with a grid or scratch memory: its step, and how many of its last sizes are what.
static void give_grids(PlanData& plan, std::span<const size_t> all) {
  for (; !all.empty(); all = all.subspan(4)) {
    auto* kernel = all.size() < 4 || all[0] >= plan.steps.size()
                       ? nullptr
                       : std::get_if<KernelStep>(&plan.steps[all[0]].work);
    check_data(kernel != nullptr, "a grid of no kernel");
    kernel->grid = all[1];
    kernel->group = all[2];
    kernel->scratch = all[3];
  }
}

void read_plan(std::string_view bytes, PlanData& plan, std::vector<SizedNumber>& numbers) {
  Reader archive(bytes);
  archive(plan.inputs, plan.outputs, plan.arena_bytes, plan.results, plan.kernels);
  archive(plan.slots, plan.steps, plan.constants, numbers);
  std::vector<size_t> grids;
  if (!archive.at_end())
    archive(grids);
  give_grids(plan, grids);
  check_data(archive.at_end(), "there is more behind a plan");
}

}  // namespace tenon
