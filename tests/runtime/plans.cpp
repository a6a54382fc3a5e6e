#include "plans.h"

namespace tests {

using namespace tenon;

SlotTensor floats(size_t slot, int64_t count) {
  return {slot, {DType{6}, {count}, {1}, 0, static_cast<size_t>(count) * 4}};
}

namespace {

void put(Writer& out, const SlotTensor& tensor) {
  out(tensor.slot, tensor.layout);
}

void put_call(Writer& out, const Call& call) {
  out(call.op, call.tensors.size() + call.numbers.size());
  for (size_t k = 0; k < call.tensors.size(); ++k)
    out(Argument::Kind::tensor, Value::Kind::nothing, std::vector<int64_t>());
  for (const auto number : call.numbers)
    out(Argument::Kind::constant, Value::Kind::integer, number, std::vector<int64_t>());
  out(call.tensors.size());
  for (const auto& tensor : call.tensors)
    put(out, tensor);
  out(call.results.size());
  for (const auto& result : call.results) {
    out(result.has_value());
    if (result)
      put(out, *result);
  }
  out(std::string("fallback"), call.op, int32_t{-1});
}

}  // namespace

std::string Draft::bytes() const {
  Writer out;
  out(inputs, outputs, arena, std::vector<int64_t>(), kernels.size());
  for (const auto& kernel : kernels)
    out(kernel.object, kernel.symbol, kernel.checksum);
  out(slots.size());
  for (const auto& slot : slots)
    out(slot.kind, slot.number, slot.nbytes);
  out(steps.size());
  for (const auto& step : steps) {
    const auto* kernel = std::get_if<Kernel>(&step.work);
    out(std::string("a step"), step.allocated, step.released, kernel == nullptr);
    out(std::string(), std::vector<SizeExpression>(), std::vector<int32_t>());
    out(SizeExpression::of(SizeExpression::constant, 0));
    out(SizeExpression::of(SizeExpression::constant, 0));
    if (kernel != nullptr)
      out(kernel->kernel, kernel->slots, kernel->sizes, kernel->checks);
    else
      put_call(out, std::get<Call>(step.work));
  }
  out(constants.size());
  for (const auto& constant : constants) {
    const std::string_view data(
        reinterpret_cast<const char*>(constant.data()), constant.size() * sizeof(float));
    out(DType{6}, std::vector<int64_t>{static_cast<int64_t>(constant.size())}, data);
  }
  out(numbers);
  if (!grids.empty())
    out(grids);
  return std::move(out.bytes);
}

}  // namespace tests
