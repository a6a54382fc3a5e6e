// Any bytes as a program: refused with an error, or run over the memory that it was checked for.
//
// make -C csrc/runtime fuzz [SECONDS=60]

#include <cstdint>

#include "runtime/program.h"

using namespace tenon;

namespace {

constexpr int64_t kMost = 1 << 16;  // bytes of an input, an output, or a run's memory
constexpr size_t kHead = 32;

// With a right checksum of the head, or nothing would come beyond it.
std::string with_checksum(std::string file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data() + 16, sizeof(length));
  const auto sum = checksum(std::string_view(file).substr(kHead, length));
  std::memcpy(file.data() + 24, &sum, sizeof(sum));
  return file;
}

void run(Program& program, size_t number) {
  const auto& method = program.file().methods[number];
  std::vector<std::vector<int64_t>> sizes;
  std::vector<GivenTensor> given;
  for (const auto& input : method.inputs) {
    sizes.emplace_back();
    for (const auto& size : input.sizes) {
      const auto bounds = bounds_of(size, method.symbols).value();
      sizes.back().push_back(bounds.least);
    }
  }
  for (size_t k = 0; k < sizes.size(); ++k)
    given.push_back({method.inputs[k].dtype, sizes[k]});
  const auto plan = program.plan(number, given);
  std::vector<std::vector<int64_t>> memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  auto left = kMost - static_cast<int64_t>(std::min<size_t>(plan->placement.nbytes, kMost));
  const auto add = [&](const TensorLayout& layout) {
    left -= static_cast<int64_t>(layout.nbytes);
    if (left < 0)
      fail(ErrorKind::out_of_memory, "more than this test gives");
    memory.emplace_back(layout.nbytes / sizeof(int64_t) + 1, 1);
    return memory.back().data();
  };
  for (const auto& layout : plan->inputs)
    inputs.push_back(add(layout));
  for (const auto& layout : plan->outputs)
    outputs.push_back(add(layout));
  // A tensor that repeats its elements has more of them than memory.
  for (const auto& step : plan->data.steps) {
    for (const auto& tensor : std::get<CallStep>(step.work).tensors) {
      int64_t elements = 1;
      for (const auto size : tensor.layout.sizes) {
        if (__builtin_mul_overflow(elements, size, &elements) || elements > kMost)
          return;
      }
    }
  }
  program.run(*plan, inputs, outputs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead)
    return 0;
  const auto bytes = with_checksum({reinterpret_cast<const char*>(data), size});
  ProgramOptions options;
  options.bytes = bytes;
  options.threads = 1;
  options.unchecked_weights = true;
  try {
    Program program("", options);
    for (size_t k = 0; k < program.file().methods.size(); ++k) {
      if (program.file().methods[k].plan.plan.kernels.empty())
        run(program, k);
    }
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
  return 0;
}
