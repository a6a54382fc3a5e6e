// Ops that the runtime computes itself: sorting.

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"
#include "programs.h"
#include "runtime/host_ops.h"
#include "runtime/program.h"
#include "tenon.h"

using namespace tenon;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TensorLayout layout_of(int dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  TensorLayout made{static_cast<DType>(dtype), std::move(sizes), std::move(strides)};
  made.nbytes = *storage_bytes(made);
  return made;
}

Argument number(int64_t value) {
  Argument made;
  made.value.kind = Value::Kind::integer;
  made.value.integer = value;
  return made;
}

CallStep sort_step(const TensorLayout& x, const TensorLayout& values, int64_t dim, bool down) {
  CallStep step;
  step.op = "aten::sort\n";
  step.arguments = {Argument{Argument::Kind::tensor}, number(dim), number(down)};
  step.tensors = {{0, x}};
  auto places = values;
  places.dtype = DType{4};
  step.results = {SlotTensor{1, values}, SlotTensor{2, places}};
  return step;
}

void run(const CallStep& step, void* x, void* values, void* places) {
  const std::array<void*, 1> tensors{x};
  const std::array<void*, 2> results{values, places};
  find_host_op(step.op)(step, tensors, results);
}

// The places that a vector's elements have in order.
template <class T>
std::vector<int64_t> places(int dtype, std::vector<T> x, bool down, std::vector<T>* sorted = {}) {
  const auto of = layout_of(dtype, {static_cast<int64_t>(x.size())}, {1});
  const auto step = sort_step(of, of, -1, down);
  std::vector<T> values(x.size());
  std::vector<int64_t> found(x.size());
  run(step, x.data(), values.data(), found.data());
  for (size_t k = 0; k < x.size(); ++k)
    CHECK(std::memcmp(&values[k], &x[static_cast<size_t>(found[k])], sizeof(T)) == 0);
  if (sorted != nullptr)
    *sorted = values;
  return found;
}

using Places = std::vector<int64_t>;

}  // namespace

TEST(numbers_are_sorted_as_pytorch_does) {
  const std::vector<double> reals{3, -1, kNan, -INFINITY, 0.0, -0.0, INFINITY, 1e-310, -1e-310, 3};
  const Places up{3, 1, 8, 4, 5, 7, 0, 9, 6, 2}, down{2, 6, 0, 9, 7, 4, 5, 8, 1, 3};
  CHECK(places<double>(7, reals, false) == up && places<double>(7, reals, true) == down);
  const std::vector<float> floats{3, -1, NAN, -INFINITY, 0.0f, -0.0f, INFINITY, 1, -1, -NAN};
  CHECK(places<float>(6, floats, false) == Places({3, 1, 8, 4, 5, 7, 0, 6, 2, 9}));
  CHECK(places<int64_t>(4, {5, INT64_MIN, -1, INT64_MAX, 0}, false) == Places({1, 2, 4, 0, 3}));
  CHECK(places<int32_t>(3, {5, INT32_MIN, -1, INT32_MAX, 0}, true) == Places({3, 0, 4, 2, 1}));
  CHECK(places<int8_t>(1, {5, -128, -1, 127, 0}, false) == Places({1, 2, 4, 0, 3}));
  CHECK(places<uint8_t>(0, {5, 128, 255, 127, 0}, false) == Places({4, 0, 3, 1, 2}));
  CHECK(places<uint8_t>(11, {1, 0, 1, 0}, true) == Places({0, 2, 1, 3}));
  // float16 and bfloat16: 1, -2, NaN, infinity, -0, 0
  CHECK(
      places<uint16_t>(5, {0x3c00, 0xc000, 0x7e00, 0x7c00, 0x8000, 0}, false) ==
      Places({1, 4, 5, 0, 3, 2}));
  CHECK(
      places<uint16_t>(15, {0x3f80, 0xc000, 0x7fc0, 0x7f80, 0x8000, 0}, false) ==
      Places({1, 4, 5, 0, 3, 2}));
  std::mt19937 random(1);
  std::vector<int16_t> many(1000), sorted;
  for (auto& x : many)
    x = static_cast<int16_t>(random() % 50);
  const auto found = places<int16_t>(2, many, false, &sorted);
  for (size_t k = 1; k < many.size(); ++k)
    CHECK(sorted[k - 1] < sorted[k] || (sorted[k - 1] == sorted[k] && found[k - 1] < found[k]));
}

TEST(a_dimension_is_sorted_by_strides) {
  // [2, 3], of which the memory is the transposed one; sorted along the first dimension
  float x[] = {4, 1, 2, 5, 6, 3};
  const auto of = layout_of(6, {2, 3}, {1, 2}), result = layout_of(6, {2, 3}, {3, 1});
  const auto step = sort_step(of, result, 0, false);
  float values[6];
  int64_t found[6];
  run(step, x, values, found);
  CHECK(std::memcmp(values, std::vector<float>({1, 2, 3, 4, 5, 6}).data(), 24) == 0);
  CHECK(found[0] == 1 && found[1] == 0 && found[2] == 1 && found[3] == 0);
}

TEST(the_largest_or_smallest_are_found) {
  float x[] = {4, 1, NAN, 5, 1, 3};
  auto step = sort_step(layout_of(6, {2, 3}, {3, 1}), layout_of(6, {2, 2}, {2, 1}), -1, true);
  step.op = "aten::topk\n";
  step.arguments = {Argument{Argument::Kind::tensor}, number(2), number(1), number(1), number(0)};
  float values[4];
  int64_t found[4];
  const auto op = [&] { run(step, x, values, found); };
  op();
  CHECK(std::isnan(values[0]) && values[1] == 4 && values[2] == 5 && values[3] == 3);
  CHECK(found[0] == 2 && found[1] == 0 && found[2] == 0 && found[3] == 2);
  step.arguments[3] = number(0);
  op();
  CHECK(values[0] == 1 && values[1] == 4 && values[2] == 1 && values[3] == 3);
  step.arguments[1] = number(4);
  CHECK_RAISES("out of range", op());
  step.arguments[1] = number(1);
  CHECK_RAISES("results of other sizes", op());
  step.arguments[2] = number(2);
  CHECK_RAISES("no dimension", op());
  step.arguments.resize(1);
  CHECK_RAISES("lacks an argument", op());
}

TEST(more_rows_than_a_number_counts_are_refused) {
  float x[2] = {2, 1}, values[2];
  int64_t found[2];
  constexpr int64_t kMany = int64_t{1} << 40;
  const auto of = layout_of(6, {kMany, kMany, 2}, {0, 0, 1});
  CHECK_RAISES("more rows", run(sort_step(of, of, -1, false), x, values, found));
  const auto none = layout_of(6, {kMany, kMany, 0, 2}, {0, 0, 1, 1});
  run(sort_step(none, none, -1, false), x, values, found);
}

TEST(a_program_sorts) {
  for (const auto kind : {Slot::Kind::external, Slot::Kind::output}) {
    auto draft = tests::sorting_program();
    auto& plan = draft.methods[0].plan;
    if (kind == Slot::Kind::external) {
      // What the call makes goes through a second one.
      plan.slots.push_back({Slot::Kind::external, 0, 32});
      auto again = plan.steps[0];
      std::get<tests::Call>(plan.steps[0].work).results = {tests::floats(3, 8), std::nullopt};
      plan.steps[0].allocated = {};
      std::get<tests::Call>(again.work).tensors = {tests::floats(3, 8)};
      again.released = {3};
      plan.steps.push_back(again);
    }
    const tests::TemporaryFile file(draft.bytes());
    tenon_program* program = nullptr;
    tenon_status status{};
    CHECK(tenon_open_program(file.path.c_str(), nullptr, &program, &status) == TENON_OK);
    float x[] = {5, 3, 8, 1, 2, 9, 7, 0}, values[8];
    int64_t found[8];
    tenon_tensor input{sizeof(input), x, sizeof(x), TENON_FLOAT32, 1, {8}};
    tenon_tensor outputs[2] = {
        {sizeof(input), values, sizeof(values)}, {sizeof(input), found, sizeof(found)}};
    CHECK(tenon_run(program, 0, &input, 1, outputs, 2, &status) == TENON_OK);
    CHECK(values[0] == 0 && values[7] == 9 && outputs[1].dtype == TENON_INT64);
    CHECK(found[0] == (kind == Slot::Kind::output ? 7 : 0));
    tenon_close_program(program);
  }
}

TEST(who_embeds_it_has_ops_of_its_own) {
  set_resolve_call([](CallStep& step) {
    if (step.op == "aten::nothing\n")
      fail(ErrorKind::unsupported, "there is no such op");
    step.written = {step.op == "aten::neg_\n"};
    step.function = [](const CallStep&, auto tensors, auto results) {
      for (int k = 0; k < 8; ++k) {
        static_cast<float*>(results[0])[k] = -static_cast<const float*>(tensors[0])[k];
        static_cast<int64_t*>(results[1])[k] = k;
      }
    };
  });
  auto draft = tests::sorting_program();
  auto& method = draft.methods[0];
  auto& call = std::get<tests::Call>(method.plan.steps[0].work);
  const auto opened = [&] {
    const tests::TemporaryFile file(draft.bytes());
    return Program(file.path, {.threads = 1}).file().methods.size();
  };
  call.op = "aten::neg\n";
  {
    const tests::TemporaryFile file(draft.bytes());
    Program program(file.path, {.threads = 1});
    const std::vector<int64_t> sizes{8};
    const GivenTensor given{DType{6}, sizes};
    const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float values[8];
    int64_t places[8];
    const std::array<const void*, 1> inputs{x};
    const std::array<void*, 2> outputs{values, places};
    program.run(*program.plan(0, {&given, 1}), inputs, outputs);
    CHECK(values[7] == -8 && places[7] == 7);
  }
  call.op = "aten::nothing\n";
  CHECK_RAISES("there is no such op", opened());
  // Of a program's inputs runs change the state alone.
  call.op = "aten::neg_\n";
  CHECK_RAISES("a call writes what a run may not change", opened());
  draft.states = {{"s", {8}, -1}};
  method.plan_inputs = {{Source::Kind::state, 0}};
  CHECK(opened() == 1);
  draft.weights = {{"w", {1, 2, 3, 4, 5, 6, 7, 8}}};
  method.plan_inputs = {{Source::Kind::weight, 0}};
  CHECK_RAISES("a call writes what a run may not change", opened());
  set_resolve_call(nullptr);
  call.op = "aten::sort\n";
  CHECK(opened() == 1);
  call.results[0] = tests::floats(0, 8);
  CHECK_RAISES("a call writes what a run may not change", opened());
  call.op = "aten::neg\n";
  CHECK_RAISES("sort calls aten::neg, which this runtime does not have", opened());
}
