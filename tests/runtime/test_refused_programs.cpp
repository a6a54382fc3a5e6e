// Programs and calls that are refused, and what the error says.

#include <functional>

#include "opened_program.h"
#include "runtime/processor.h"

using namespace tenon;
using tests::example_program;
using tests::kScale;
using tests::kSpread;
using tests::Opened;
using tests::Outputs;
using tests::ProgramDraft;
using tests::TemporaryFile;
using tests::tensor_of;

TEST(inputs_of_other_sizes_are_refused_with_a_reason) {
  const TemporaryFile file(example_program().bytes());
  const Opened opened(file.path);
  std::vector<float> x(1000);
  Outputs two(2), one(1);
  const auto of = [&](const std::vector<int64_t>& sizes, int32_t dtype = 6) {
    return tensor_of(x.data(), sizes, dtype);
  };
  CHECK_RAISES("scale takes 1 inputs, and is given 0", opened.run(kScale, {}, two));
  CHECK_RAISES("scale has 2 outputs, and is given 1", opened.run(kScale, {of({2, 4})}, one));
  CHECK_RAISES(
      "scale: input 'x' is expected to be torch.float32, and is torch.int64",
      opened.run(kScale, {of({2, 4}, 4)}, two));
  CHECK_RAISES("and is dtype -1", opened.run(kScale, {of({2, 4}, -7)}, two));
  CHECK_RAISES("expected to have 2 dimensions, [rows, 4]", opened.run(kScale, {of({8})}, two));
  CHECK_RAISES(
      "scale: input 'x' has size 5 at dimension 1, where 4 is expected: its sizes are [rows, 4] "
      "with rows = 2",
      opened.run(kScale, {of({2, 5})}, two));
  CHECK_RAISES(
      "scale: input 'x' has size 101 at dimension 0, where rows is expected to be at least 2 and "
      "at most 100",
      opened.run(kScale, {of({101, 4})}, two));
  CHECK_RAISES("at least 2", opened.run(kScale, {of({1, 4})}, two));
  CHECK_RAISES(
      "scale: it was exported for sizes where rows != 13, and not for rows = 13",
      opened.run(kScale, {of({13, 4})}, two));
  CHECK_RAISES(
      "input 'y' has size 4 at dimension 0, where 3 is expected: its sizes are [n] with n = 3",
      opened.run(kSpread, {of({3}), of({4})}, two));
  auto small = of({2, 4});
  small.nbytes = 31;
  CHECK_RAISES("input 'x' takes 32 bytes, and there are 31", opened.run(kScale, {small}, two));
  two.all[0] = of({2, 4});
  two.all[0].nbytes = 8;
  CHECK_RAISES("output 'result' takes 32 bytes", opened.run(kScale, {of({2, 4})}, two));
  two.all[0].data = nullptr;
  small = of({2, 4});
  small.rank = 17;
  CHECK_RAISES("has 17 dimensions", opened.run(kScale, {small}, two));
  small.size = 5;
  CHECK_RAISES("sizeof(tenon_tensor): it is 5", opened.run(kScale, {small}, two));
  CHECK_RAISES("4 methods, and no 7", opened.run(7, {}, two));
  CHECK(two.all[0].data == nullptr && two.all[1].data == nullptr);
}

TEST(what_cannot_be_opened_says_why) {
  const auto refused = [](const char* text, const ProgramDraft& draft, tenon_options options = {}) {
    const TemporaryFile file(draft.bytes());
    const auto said = tests::error_of([&] { Opened(file.path, options); });
    if (said.find(text) == std::string::npos)
      tests::failed(__FILE__, __LINE__, "the error is '" + said + "', and no '" + text + "'");
  };
  CHECK_RAISES("/nowhere cannot be opened", Opened("/nowhere"));
  CHECK_RAISES("/tmp is no file", Opened("/tmp"));
  auto draft = example_program();
  draft.codes[0].processor = "mips";
  refused("has kernels for: mips; this processor is ", draft);
  draft.codes.push_back({"x86-64:avx99 sse", "x"});
  refused("mips, x86-64:avx99 sse", draft);
  draft = example_program();
  draft.target = "toy";
  refused("was exported for the target 'toy', and is opened on 'cpu'", draft);
  draft = example_program();
  draft.methods[0].plan.kernels[0].symbol = "nothing";
  refused("has no nothing", draft);
  draft.methods[0].plan.kernels[0].object = "k.so";
  refused("a kernel that is not in the program", draft);
  draft.codes.push_back({"source", "x"});
  for (const char* number : {"0", "2", "-1", "1 ", "18446744073709551617"}) {
    draft.methods[0].plan.kernels[0].object = number;
    refused("a kernel that is not in the program", draft);
  }
  draft.methods[0].plan.kernels[0].object = "1";
  refused("is in a source, and this processor runs machine code", draft);
  draft = example_program();
  draft.methods[0].plan.steps.push_back({tests::Call{"aten::relu\n", {tests::floats(2, 4)}, {}}});
  draft.methods[0].plan.steps[1].released = {};
  refused("calls aten::relu, which this runtime does not have", draft);
  tenon_options options{};
  options.threads = -1;
  refused("from 0 to 1024 threads, and not -1", example_program(), options);
  options = {};
  options.device = 1;
  refused("this processor is device 0", example_program(), options);
  options = {};
  options.library = "/nowhere.so";
  refused("/nowhere.so", example_program(), options);
}

TEST(parts_of_a_program_that_do_not_fit_are_refused) {
  using From = Source::Kind;
  const auto refused = [](const char* text, const std::function<void(ProgramDraft&)>& change) {
    auto draft = example_program();
    change(draft);
    const TemporaryFile file(draft.bytes());
    const auto said = tests::error_of([&] { Opened{file.path}; });
    if (said.find(text) == std::string::npos)
      tests::failed(__FILE__, __LINE__, "the error is '" + said + "', and no '" + text + "'");
  };
  using D = ProgramDraft;
  refused("begins as no weight", [](D& d) { d.states[0].weight = 2; });
  refused("no weight of its sizes", [](D& d) { d.states[0].weight = 1; });
  refused("is too large", [](D& d) { d.states[0].sizes = {INT64_MAX, 4, 4}; });
  refused("is no tensor", [](D& d) { d.states[0].sizes = {-1}; });
  refused("blocks of weights", [](D& d) { d.block = 60; });
  refused("no input has the size", [](D& d) { d.methods[0].symbols.push_back({"s"}); });
  refused("allow nothing", [](D& d) { d.methods[0].symbols[0].least = 101; });
  refused("no expression", [](D& d) { d.methods[0].outputs[0].sizes[0] = tests::symbol(1); });
  refused("no expression", [](D& d) { d.methods[0].checks[0].right = {}; });
  refused("no expression", [](D& d) { d.methods[2].symbols[1].value = tests::symbol(1); });
  refused("no expression", [](D& d) { d.methods[2].symbols.push_back({"m"}); });
  refused("no expression", [](D& d) { d.methods[2].inputs[1].sizes[0] = tests::symbol(1); });
  refused("allow nothing", [](D& d) { d.methods[2].symbols[1].least = INT64_MIN; });
  refused("is no tensor", [](D& d) { d.methods[0].inputs[0].dtype = DType{12}; });
  refused(
      "is no tensor", [](D& d) { d.methods[0].outputs[0].sizes.resize(17, tests::constant(1)); });
  refused("no comparison", [](D& d) {
    d.methods[0].checks[0].comparison = static_cast<SizeCheck::Comparison>(4);
  });
  refused("other inputs and outputs", [](D& d) { d.methods[0].plan_inputs.pop_back(); });
  refused("no tensor", [](D& d) { d.methods[0].plan_inputs[1].number = 2; });
  refused("no tensor", [](D& d) { d.methods[0].plan_inputs[1] = {From::output, 0}; });
  refused("no tensor", [](D& d) { d.methods[0].copies[0].source = {From::symbol, 0}; });
  refused("made more than once", [](D& d) { d.methods[0].copies[0].output = 0; });
  refused("nothing makes one", [](D& d) { d.methods[0].copies.clear(); });
  refused("not made yet", [](D& d) { d.methods[0].copies[0].source = {From::output, 1}; });
  refused("does not fit the sizes", [](D& d) { d.methods[1].plan.slots[0].nbytes = 17; });
  refused(
      "does not fit the sizes", [](D& d) { d.methods[1].copies[0].source = {From::weight, 1}; });
}

TEST(what_calls_make_is_made_once_and_then_let_go_of) {
  const auto refused = [](const char* text, const std::function<void(ProgramDraft&)>& change) {
    auto draft = tests::sorting_program();
    draft.methods[0].plan.slots.push_back({Slot::Kind::external, 0, 32});
    change(draft);
    const TemporaryFile file(draft.bytes());
    const auto said = tests::error_of([&] { Opened{file.path}; });
    if (said.find(text) == std::string::npos)
      tests::failed(__FILE__, __LINE__, "the error is '" + said + "', and no '" + text + "'");
  };
  using D = ProgramDraft;
  const auto results = [](D& d) -> auto& {
    return std::get<tests::Call>(d.methods[0].plan.steps[0].work).results;
  };
  refused("is not let go of", [](D& d) { d.methods[0].plan.steps[0].released = {3}; });
  refused("is not let go of", [](D& d) { d.methods[0].plan.steps[0].released = {0, 0}; });
  refused("is made twice", [&](D& d) { results(d) = {tests::floats(3, 8), tests::floats(3, 8)}; });
  refused("is made twice", [&](D& d) {
    results(d) = {tests::floats(3, 8), std::nullopt};
    d.methods[0].plan.steps.push_back(d.methods[0].plan.steps[0]);
  });
}

TEST(processors_are_told_apart) {
  const Processor old{"x86-64", " sse2 cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3 avx "};
  CHECK(old.name() == "x86-64-v2" && old.runs("x86-64") && old.runs("x86-64-v2"));
  CHECK(!old.runs("x86-64-v3") && !old.runs("x86-64-v9") && !old.runs("x86-64-v"));
  CHECK(old.runs("x86-64:avx popcnt") && !old.runs("x86-64:avx avx2") && !old.runs("aarch64"));
  const Processor arm{"aarch64", ""};
  CHECK(arm.runs("aarch64") && !arm.runs("aarch64-v2") && !arm.runs("x86-64"));
  CHECK(Processor::here().runs(Processor::here().name()));
}
