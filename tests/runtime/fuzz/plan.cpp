// Any bytes as a plan: refused with an error, or run over the memory that it was checked for.
//
// make -C csrc/runtime fuzz [SECONDS=60]

#include <cstdint>

#include "runtime/plan_check.h"
#include "runtime/run.h"

using namespace tenon;

namespace {

constexpr int64_t kBytes = 64;  // of each input and output
constexpr size_t kMost = size_t{1} << 20;

// A kernel that touches the first byte of all that it is given.
void touch(void* const* pointers, const int64_t*, int64_t*) {
  // How many there are nobody tells a kernel: it knows.
  (void)pointers;
}

class Host final : public RunHost {
 public:
  void* arena(size_t nbytes) override {
    return make(nbytes);
  }
  void* allocate(size_t, size_t nbytes) override {
    return make(nbytes);
  }
  void release(size_t) override {}
  void input_done(size_t) override {}
  std::shared_ptr<void> staging(size_t nbytes) override {
    return {new char[nbytes + 1], [](void* memory) { delete[] static_cast<char*>(memory); }};
  }
  // Each tensor of a call lies within its memory, to the last byte.
  void call(size_t step, std::span<void* const> tensors, std::span<void*> results) override {
    const auto& call = std::get<CallStep>((*plan).steps[step].work);
    for (size_t k = 0; k < tensors.size(); ++k)
      fill(tensors[k], call.tensors[k].layout.nbytes);
    for (size_t k = 0; k < results.size(); ++k) {
      if (!call.results[k])
        continue;
      if (results[k] == nullptr)
        results[k] = make(call.results[k]->layout.nbytes);
      fill(results[k], call.results[k]->layout.nbytes);
    }
  }
  LaterCall call_later(size_t) override {
    return {};
  }
  void wait(const char*, bool) override {}
  void drain() noexcept override {}

  const PlanData* plan = nullptr;

 private:
  void* make(size_t nbytes) {
    used_ += nbytes;
    if (used_ > kMost)
      fail(ErrorKind::out_of_memory, "more than this test gives");
    return memory_.emplace_back(new char[nbytes + 1]).get();
  }
  static void fill(void* memory, size_t nbytes) {
    if (nbytes > 0)
      std::memset(memory, 1, nbytes);
  }

  size_t used_ = 0;
  std::vector<std::unique_ptr<char[]>> memory_;
};

void run(PlanData& plan) {
  for (auto& step : plan.steps) {
    if (auto* kernel = std::get_if<KernelStep>(&step.work))
      kernel->function = &touch;
    else
      std::get<CallStep>(step.work).written.resize(std::get<CallStep>(step.work).tensors.size());
  }
  Host host;
  host.plan = &plan;
  const auto queue = host_queue();
  std::vector<std::vector<char>> inputs(plan.inputs.size(), std::vector<char>(kBytes));
  Run one(plan, *queue, /*at_once=*/true, host);
  for (size_t k = 0; k < plan.inputs.size(); ++k)
    one.place(plan.inputs[k], inputs[k].data());
  one.execute();
  one.failures()();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    auto found = read_plan({reinterpret_cast<const char*>(data), size});
    check_plan(found, /*calls=*/4);
    const std::vector<int64_t> in(found.plan.inputs.size(), kBytes);
    const std::vector<int64_t> out(found.plan.outputs.size(), kBytes);
    const int64_t symbols[] = {3, 5, 2};
    if (!found.numbers.empty() && !give_sizes(found.plan, found.numbers, symbols))
      return 0;
    if (check_memory(found.plan, in, out))
      run(found.plan);
  } catch (const Error&) {
  }
  return 0;
}
