// Exported programs by the C interface: results, sizes, state.

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "opened_program.h"
#include "runtime/run_memory.h"
#include "tenon.h"

using namespace tenon;
using tests::accumulated;
using tests::check_scaled;
using tests::example_program;
using tests::kAccumulate;
using tests::kMostThreads;
using tests::kScale;
using tests::kSpread;
using tests::Opened;
using tests::Outputs;
using tests::ProgramDraft;
using tests::TemporaryFile;
using tests::tensor_of;

TEST(a_program_runs_for_sizes_within_bounds) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  for (const int64_t rows : {2, 3, 100, 3, 2, 50})
    check_scaled(opened, rows);
  // More sizes than plans are kept for.
  for (int64_t rows = 2; rows <= 100; ++rows) {
    if (rows != 13)
      check_scaled(opened, rows);
  }
  for (int64_t rows = 100; rows >= 90; --rows)
    check_scaled(opened, rows);
}

TEST(a_method_has_forms_for_other_sizes) {
  auto draft = example_program();
  auto form = draft.methods[kScale];
  form.symbols = {{"rows", 1, 1}};
  draft.methods.push_back(form);
  form.symbols = {{"rows", 200, 300}};
  draft.methods.push_back(form);
  const TemporaryFile file(draft.bytes());
  const Opened opened(file.path);
  for (const int64_t rows : {1, 2, 1, 100, 200, 300, 1, 50})
    check_scaled(opened, rows);
  auto* program = opened.program;
  CHECK(tenon_method_count(program) == 4 && tenon_method_name(program, 4) == nullptr);
  tenon_status status{};
  tenon_tensor_info info{};
  info.size = sizeof(info);
  for (const auto describe : {tenon_describe_input, tenon_describe_output}) {
    CHECK(describe(program, kScale, 0, &info, &status) == TENON_OK);
    CHECK(info.least[0] == 1 && info.greatest[0] == 300);
    CHECK(info.least[1] == 4 && info.greatest[1] == 4);
  }
  const auto refused = [&](const char* text, int64_t rows, int64_t columns) {
    std::vector<float> x(4096);
    Outputs out(2);
    const auto said =
        tests::error_of([&] { opened.run(kScale, {tensor_of(x.data(), {rows, columns})}, out); });
    if (said.find(text) == std::string::npos)
      tests::failed(__FILE__, __LINE__, "the error is '" + said + "', and no '" + text + "'");
  };
  refused("at least 2 and at most 100; or 'x' [rows, 4]", 150, 4);
  refused("at least 2 and at most 100; or 'x' [rows, 4]", 0, 4);
  refused("its sizes are [rows, 4] with rows = 3; or 'x' [rows, 4]", 3, 5);
  refused("rows != 13", 13, 4);

  form.outputs.pop_back();
  form.copies.pop_back();
  draft.methods.push_back(form);
  const TemporaryFile other(draft.bytes());
  CHECK_RAISES("its forms take or give other tensors", Opened(other.path));
  draft.methods.back() = draft.methods[kScale];
  draft.methods.push_back(draft.methods[kSpread]);
  draft.methods.back().name = "last";
  const TemporaryFile late(draft.bytes());
  CHECK_RAISES("last comes behind forms of other methods", Opened(late.path));
}

TEST(a_program_describes_itself) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  auto* program = opened.program;
  CHECK(tenon_method_count(program) == 4);
  CHECK(std::strcmp(tenon_method_name(program, kSpread), "spread") == 0);
  CHECK(tenon_method_name(program, 4) == nullptr);
  CHECK(tenon_program_inputs(program, kSpread) == 2 && tenon_program_inputs(program, 4) == 0);
  CHECK(tenon_program_outputs(program, kAccumulate) == 3 && tenon_program_outputs(program, 4) == 0);
  tenon_status status{};
  tenon_tensor_info info{};
  CHECK(tenon_describe_input(program, kScale, 0, &info, &status) == TENON_ERROR);
  CHECK(std::strstr(status.text, "sizeof(tenon_tensor_info)") != nullptr);
  info.size = sizeof(info);
  CHECK(tenon_describe_input(program, kScale, 0, &info, &status) == TENON_OK);
  CHECK(std::strcmp(info.name, "x") == 0 && info.dtype == TENON_FLOAT32 && info.rank == 2);
  CHECK(info.least[0] == 2 && info.greatest[0] == 100);
  CHECK(info.least[1] == 4 && info.greatest[1] == 4);
  CHECK(tenon_describe_output(program, kSpread, 0, &info, &status) == TENON_OK);
  CHECK(info.least[0] == 0 && info.greatest[0] == TENON_NO_BOUND);
  CHECK(tenon_describe_output(program, kSpread, 2, &info, &status) == TENON_OUT_OF_RANGE);
  CHECK(tenon_describe_input(program, 9, 0, &info, &status) == TENON_OUT_OF_RANGE);
  const std::string facts = tenon_program_json(program);
  for (const char* part :
       {"\"target\": \"cpu\"", "\"weights\": 416", "\"state\": 32", "\"threads\""})
    CHECK(facts.find(part) != std::string::npos);
  CHECK(tenon_version() == TENON_INTERFACE * 1000 + 5);
}

TEST(null_is_no_program_and_no_argument) {
  CHECK(tenon_method_count(nullptr) == 0 && tenon_method_name(nullptr, 0) == nullptr);
  CHECK(tenon_program_inputs(nullptr, 0) == 0 && tenon_program_outputs(nullptr, 0) == 0);
  CHECK(tenon_program_json(nullptr) == nullptr);
  tenon_close_program(nullptr);
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  const auto* path = file.path.c_str();
  auto* const program = opened.program;
  tenon_program* found = nullptr;
  float values[16] = {};
  auto x = tensor_of(values, {4});
  Outputs out(3);
  auto* const made = out.all.data();
  tenon_tensor_info info{};
  info.size = sizeof(info);
  tenon_status status{};
  const auto lacks = [&](const char* name, int32_t code) {
    CHECK(code == TENON_ERROR && std::strstr(status.text, name) != nullptr);
    CHECK(std::strstr(status.text, "is null") != nullptr);
    status = {};
  };
  lacks("'path'", tenon_open_program(nullptr, nullptr, &found, &status));
  lacks("'found'", tenon_open_program(path, nullptr, nullptr, &status));
  lacks("'program'", tenon_reset(nullptr, &status));
  lacks("'program'", tenon_run(nullptr, kAccumulate, &x, 1, made, 3, &status));
  lacks("'inputs'", tenon_run(program, kAccumulate, nullptr, 1, made, 3, &status));
  lacks("'outputs'", tenon_run(program, kAccumulate, &x, 1, nullptr, 3, &status));
  lacks("'program'", tenon_output_sizes(nullptr, kAccumulate, &x, 1, made, 3, &status));
  lacks("'inputs'", tenon_output_sizes(program, kAccumulate, nullptr, 1, made, 3, &status));
  lacks("'outputs'", tenon_output_sizes(program, kAccumulate, &x, 1, nullptr, 3, &status));
  lacks("'program'", tenon_describe_input(nullptr, kScale, 0, &info, &status));
  lacks("'info'", tenon_describe_input(program, kScale, 0, nullptr, &status));
  lacks("'info'", tenon_describe_output(program, kScale, 0, nullptr, &status));
  CHECK(tenon_run(nullptr, kAccumulate, &x, 1, made, 3, nullptr) == TENON_ERROR);
}

TEST(outputs_are_known_before_a_run) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  const auto x = tensor_of(nullptr, {7, 4});
  Outputs out(2);
  tenon_status status{};
  CHECK(tenon_output_sizes(opened.program, kScale, &x, 1, out.all.data(), 2, &status) == TENON_OK);
  CHECK(out.all[0].sizes[0] == 7 && out.all[0].nbytes == 112 && out.all[1].rank == 1);
  CHECK(out.all[0].data == nullptr);
}

TEST(memory_that_is_not_aligned_is_copied) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  alignas(64) char memory[64] = {}, result[64] = {};
  const float values[] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::memcpy(memory + 1, values, sizeof(values));
  Outputs out(2);
  out.all[0].data = result + 3;
  out.all[0].nbytes = 40;
  opened.run(kScale, {tensor_of(memory + 1, {2, 4})}, out);
  float found[8];
  std::memcpy(found, result + 3, sizeof(found));
  CHECK(found[0] == 7 && found[7] == 38 && result[2] == 0 && result[35] == 0);
  CHECK(out.all[0].nbytes == 40);
  out.all[0].data = nullptr;
}

TEST(an_output_may_lie_where_an_input_is) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  for (const size_t shift : {0, 1, 4}) {
    alignas(64) float memory[16] = {0, 1, 2, 3, 4, 5, 6, 7};
    Outputs out(2);
    out.all[0].data = memory + shift;
    out.all[0].nbytes = 32;
    opened.run(kScale, {tensor_of(memory, {2, 4})}, out);
    for (size_t k = 0; k < 8; ++k)
      CHECK(memory[shift + k] == static_cast<float>(k * (k % 4 + 1) + 6));
    tenon_free(out.all[1].data);
    out.all[1].data = memory + shift + 7;
    out.all[1].nbytes = 16;
    CHECK_RAISES(
        "scale: output 'weight' overlaps another output",
        opened.run(kScale, {tensor_of(memory, {2, 4})}, out));
    out.all[0].data = out.all[1].data = nullptr;
  }
}

TEST(state_stays_until_it_is_reset) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path), other(file.path);
  CHECK(accumulated(opened, 10) == std::vector<float>({11, 12, 13, 14}));
  CHECK(accumulated(opened, 10) == std::vector<float>({21, 22, 23, 24}));
  CHECK(accumulated(other, 1) == std::vector<float>({2, 3, 4, 5}));
  tenon_status status{};
  CHECK(tenon_reset(opened.program, &status) == TENON_OK);
  CHECK(accumulated(opened, 0) == std::vector<float>({1, 2, 3, 4}));
  check_scaled(opened, 5);  // the weight has not changed
}

TEST(a_child_of_a_fork_is_told_where_its_state_is_half_changed) {
  auto draft = example_program();
  const TemporaryFile whole(draft.bytes());
  draft.methods[kAccumulate].plan.kernels = {{"", "hold", 0}};
  const TemporaryFile file(draft.bytes(), "held.tenon");
  const Opened opened(file.path), idle(whole.path);
  CHECK(accumulated(idle, 10) == std::vector<float>({11, 12, 13, 14}));
  std::vector<float> x(16);
  auto* begun = static_cast<volatile float*>(x.data());
  const auto run = [&] {
    Outputs out(3);
    opened.run(kAccumulate, {tensor_of(x.data(), {4})}, out);
  };
  std::thread other(run);
  while (begun[1] == 0)
    std::this_thread::yield();
  const auto child = fork();
  if (child == 0) {
    alarm(20);
    begun[3] = 1;
    CHECK_RAISES("may be half changed: reset it first", run());
    tenon_status status{};
    CHECK(tenon_reset(opened.program, &status) == TENON_OK);
    run();
    check_scaled(opened, 5);
    CHECK(tenon_program_json(opened.program) != nullptr);
    CHECK(accumulated(idle, 10) == std::vector<float>({21, 22, 23, 24}));
    _exit(0);
  }
  begun[3] = 1;
  other.join();
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  run();
}

TEST(a_failed_check_is_an_error) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  CHECK_RAISES("index 7 is out of bounds", accumulated(opened, -1));
}

TEST(empty_tensors_have_no_memory) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  Outputs out(2);
  opened.run(kSpread, {tensor_of(nullptr, {0}), tensor_of(nullptr, {0})}, out);
  CHECK(out.all[0].nbytes == 0 && out.all[0].sizes[0] == 0);
}

TEST(kernels_share_out_their_work) {
  const TemporaryFile file(example_program().bytes());
  for (const int32_t threads : {1, 2, 5}) {
    tenon_options options{};
    options.threads = threads;
    const Opened opened(file.path, options);
    Outputs count(1), out(2);
    opened.run(kMostThreads, {}, count);
    CHECK(*static_cast<int64_t*>(count.all[0].data) == threads);
    std::vector<float> x(1000, 8);
    opened.run(kSpread, {tensor_of(x.data(), {1000}), tensor_of(x.data(), {1000})}, out);
    for (size_t k = 0; k < x.size(); ++k)
      CHECK(out.floats(0)[k] == 1000 && out.floats(1)[k] == 8);
  }
}

TEST(something_else_multiplies_where_the_caller_says_so) {
  struct Asked {
    int times = 0, most_threads = 0;
    bool is_done = false;
  } asked;
  tenon_products_t products{sizeof(products), &asked};
  products.multiply = [](void* context, const tenon_host_t* host, const void* product, size_t n) {
    auto& all = *static_cast<Asked*>(context);
    ++all.times;
    all.most_threads = host->most_threads();
    return product != nullptr && n == sizeof(int64_t) && all.is_done ? 0 : 1;
  };
  const TemporaryFile file(example_program().bytes());
  tenon_options options{};
  options.threads = 3;
  options.products = &products;
  {
    const Opened opened(file.path, options);
    check_scaled(opened, 2);  // by the program's own code, as it was refused
    CHECK(asked.times == 2 && asked.most_threads == 3);  // it has two steps
    asked.is_done = true;
    float x[8] = {}, result[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    Outputs out(2);
    out.all[0].data = result;
    out.all[0].nbytes = sizeof(result);
    opened.run(kScale, {tensor_of(x, {2, 4})}, out);
    out.all[0].data = nullptr;  // not the library's
    CHECK(asked.times == 4 && result[0] == 9 && result[7] == 9);
  }
  check_scaled(Opened(file.path), 2);
  CHECK(asked.times == 4);
}

TEST(several_threads_run_one_program) {
  auto draft = example_program();
  draft.states.clear();
  draft.methods.erase(draft.methods.begin() + kAccumulate);
  for (const auto& one : {draft, example_program()}) {
    const TemporaryFile file(one.bytes());
    tenon_options options{};
    options.threads = 2;
    const Opened opened(file.path, options);
    const auto work = [&](int64_t first) {
      for (int64_t k = 0; k < 200; ++k)
        check_scaled(opened, first + k % 7);
    };
    std::thread other(work, 20);
    work(2);
    other.join();
  }
}

TEST(blocks_that_are_never_there_at_once_share_memory) {
  using Kind = Slot::Kind;
  PlanData plan;
  plan.arena_bytes = 100;
  plan.slots = {{Kind::block, 1000}, {Kind::block, 5000}, {Kind::block, 1000}, {Kind::output, 8}};
  plan.steps.resize(4);
  plan.steps[0].allocated = {0};
  plan.steps[1].allocated = {1};
  plan.steps[1].released = {0};
  plan.steps[2].allocated = {2};
  plan.steps[2].released = {1};
  plan.steps[3].released = {2};
  const auto placed = place_blocks(plan);
  CHECK(placed.nbytes == 128 + 5056 + 1024);
  CHECK(placed.offsets[1] == 128 && placed.offsets[0] == placed.offsets[2]);
  RunMemory memory;
  const auto first = memory.take(10000), second = memory.take(10);
  memory.give_back(first);
  memory.give_back(second);
  CHECK(memory.take(100).start == second.start && memory.take(100).start == first.start);
}

TEST(weights_lie_in_a_file_of_their_own) {
  auto draft = example_program();
  draft.weight_file = "weights.safetensors";
  const TemporaryFile file(draft.bytes());
  const TemporaryFile weights(draft.bytes_of_weight_file(), "other.safetensors");
  CHECK_RAISES("weights.safetensors cannot be opened", Opened{file.path});
  tenon_options options{};
  options.weights = weights.path.c_str();
  {
    const Opened opened(file.path, options);
    check_scaled(opened, 5);
  }
  auto changed = draft.bytes_of_weight_file();
  changed.back() ^= 1;
  weights.write(changed);
  CHECK_RAISES("is damaged, or of another program: its weights", Opened(file.path, options));
  options.unchecked_weights = 1;
  CHECK(tests::error_of([&] { Opened(file.path, options); }).empty());
  weights.write(changed + "1234");
  CHECK_RAISES("is not the weight file of", Opened(file.path, options));
  const TemporaryFile whole(example_program().bytes());
  CHECK_RAISES("has its weights in itself", Opened(whole.path, options));
}

TEST(a_device_has_its_own_weights_and_state) {
  using Kind = Slot::Kind;
  using From = Source::Kind;
  const DType f32{6};
  ProgramDraft draft;
  draft.target = "toy";
  draft.weights = {{"w", {1, 2, 3, 4}}};
  draft.states = {{"s", {2, 2}, -1}, {"t", {4}, 0}};
  draft.codes = {{"source", "another"}, {"source", "matmul"}};
  // r = x @ w; s += 0 by being copied; outputs: r, x, w, t, and r again.
  ProgramDraft::Method method{"product"};
  method.symbols = {{"rows", 0, 64}};
  method.inputs = {{"x", f32, {tests::symbol(0), tests::constant(2)}}};
  method.outputs = {
      {"r", f32, {tests::symbol(0), tests::constant(2)}},
      {"x", f32, {tests::symbol(0), tests::constant(2)}},
      {"w", f32, {tests::constant(4)}},
      {"t", f32, {tests::constant(4)}},
      {"again", f32, {tests::symbol(0), tests::constant(2)}}};
  method.plan_inputs = {{From::input, 0}, {From::weight, 0}};
  method.plan_outputs = {0};
  method.copies = {
      {1, {From::input, 0}}, {2, {From::weight, 0}}, {3, {From::state, 1}}, {4, {From::output, 0}}};
  const auto bytes = tests::symbol(0).joined(SizeExpression::multiply, tests::constant(8));
  using Where = SizedNumber::Where;
  method.plan.slots = {{Kind::input, 0, 0}, {Kind::input, 0, 16}, {Kind::output, 0}};
  method.plan.inputs = {0, 1};
  method.plan.outputs = {2};
  method.plan.kernels = {{"1", "matmul", 0}};
  method.plan.steps.push_back({tests::Kernel{0, {2, 0, 1}, {0, 2, 2}, {}}, {2}, {0, 1}});
  method.plan.numbers = {
      {Where::kernel, 0, 0, {}, 0, tests::symbol(0)},
      {Where::bytes, 0, 0, {}, 0, bytes},
      {Where::slot, 2, 0, {}, 0, bytes}};
  // s = x @ s
  auto step = method;
  step.name = "step";
  step.symbols = {};
  step.inputs = {{"x", f32, {tests::constant(2), tests::constant(2)}}};
  step.outputs = {{"s", f32, {tests::constant(2), tests::constant(2)}}};
  step.plan_inputs = {{From::state, 0}, {From::weight, 0}, {From::input, 0}};
  step.plan_outputs = {};
  step.copies = {{0, {From::state, 0}}};
  step.plan.slots = {{Kind::input, 0, 16}, {Kind::input, 0, 16}, {Kind::input, 0, 16}};
  step.plan.inputs = {0, 1, 2};
  step.plan.outputs = {};
  step.plan.steps = {{tests::Kernel{0, {0, 2, 1}, {2, 2, 2}, {}}, {}, {0, 1, 2}}};
  step.plan.numbers = {};
  draft.methods = {method, step};

  const TemporaryFile file(draft.bytes());
  const auto library = tests::folder_of_this() + "libtoy.so";
  for (const int32_t each : {0, 1}) {
    tenon_options options{};
    options.library = library.c_str();
    options.commit_each = each;
    const Opened opened(file.path, options);
    std::vector<float> x{1, 0, 0, 1, 1, 1};
    for (const int64_t rows : {3, 1, 3, 0}) {
      Outputs out(5);
      opened.run(0, {tensor_of(x.data(), {rows, 2})}, out);
      const float expected[] = {1, 2, 3, 4, 4, 6};
      for (size_t k = 0; k < static_cast<size_t>(rows) * 2; ++k) {
        CHECK(out.floats(0)[k] == expected[k] && out.floats(4)[k] == expected[k]);
        CHECK(out.floats(1)[k] == x[k]);
      }
      CHECK(out.floats(2)[3] == 4 && out.floats(3)[3] == 4);
    }
    Outputs out(1), first(1);
    opened.run(1, {tensor_of(x.data(), {2, 2})}, out);
    CHECK(out.floats(0)[0] == 1 && out.floats(0)[3] == 4);
    tenon_status status{};
    CHECK(tenon_reset(opened.program, &status) == TENON_OK);
  }
  CHECK_RAISES("is opened on 'cpu': open it with that target's library", Opened(file.path));
}
