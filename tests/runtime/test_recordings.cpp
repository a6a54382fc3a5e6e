// Runs of programs on a device that records kernels: the second one is recorded, and replayed.

#include <thread>

#include "strict.h"

using namespace tenon;
using tests::kBlock;
using tests::kBytes;
using tests::kFloats;
using tests::OpenedOnDevice;
using tests::Strict;
using tests::TemporaryFile;
using tests::TwoQueues;

namespace {

using Kind = Slot::Kind;
using From = Source::Kind;

// The program of strict.h with two more methods:
//   grow(x) -> t, a state that begins as 2, after it was multiplied by x twice
//   checked(x) -> x * x * w, whose checks want the first x not to be negative
tests::ProgramDraft program() {
  auto draft = tests::strict_program();
  const auto multiply = [](size_t to, size_t a, size_t b) {
    return tests::Kernel{0, {to, a, b}, {kFloats}, {}};
  };
  auto grow = draft.methods[0];
  grow.name = "grow";
  grow.outputs.resize(1);
  grow.plan_inputs = {{From::input, 0}, {From::state, 1}};
  grow.plan_outputs = {};
  grow.copies = {{0, {From::state, 1}}};
  grow.plan.slots = {{Kind::input, 0, kBytes}, {Kind::input, 0, kBytes}};
  grow.plan.constants = {};
  grow.plan.outputs = {};
  grow.plan.steps = {{multiply(1, 1, 0), {}, {}}, {multiply(1, 1, 0), {}, {0, 1}}};
  auto checked = draft.methods[0];
  checked.name = "checked";
  checked.outputs.resize(1);
  checked.plan_outputs = {0};
  checked.plan.slots = {
      {Kind::input, 0, kBytes},
      {Kind::input, 0, kBytes},
      {Kind::output, kBytes},
      {Kind::block, 5 * kBlock}};
  checked.plan.constants = {};
  checked.plan.outputs = {2};
  checked.plan.steps = {{multiply(3, 0, 0), {3}, {}}, {multiply(2, 3, 1), {2}, {3, 0, 1}}};
  std::get<tests::Kernel>(checked.plan.steps[0].work).checks = {{-1}};
  draft.methods.push_back(grow);
  draft.methods.push_back(checked);
  return draft;
}

constexpr size_t kGrow = 2, kChecked = 3;

// The first element of what a method with one output gives; `code` is what it returned.
float first_of(const OpenedOnDevice& opened, size_t method, float value, int32_t code = TENON_OK) {
  std::vector<float> x(kFloats, value), y(kFloats);
  const tenon_tensor input{sizeof(input), x.data(), kBytes, TENON_FLOAT32, 1, {kFloats}};
  tenon_tensor output{sizeof(output), y.data(), kBytes, TENON_FLOAT32, 1, {kFloats}};
  tenon_status status{};
  CHECK(tenon_run(opened.program, method, &input, 1, &output, 1, &status) == code);
  CHECK(code != TENON_OK || y[0] == y[kFloats - 1]);
  return y[0];
}

}  // namespace

TEST(the_second_run_is_recorded_and_replayed_from_then_on) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
  const auto replays = strict.replays(), recordings = strict.recordings();
  {
    const OpenedOnDevice opened(strict, file.path);
    CHECK(opened.run(2) == TENON_OK && strict.replays() == replays);
    // Inputs and outputs of each run lie elsewhere on the host.
    for (int turn = 1; turn < 5; ++turn) {
      const std::vector<char> elsewhere(static_cast<size_t>(turn) * 3 * kBytes);
      CHECK(opened.run(static_cast<float>(turn)) == TENON_OK);
      CHECK(strict.replays() == replays + turn && strict.recordings() == recordings + 1);
    }
    CHECK(
        std::string(tenon_program_json(opened.program)).find("\"replays\": 4}") !=
        std::string::npos);
    // Methods take the same memory by turns, and weights are theirs in common.
    for (int turn = 0; turn < 4; ++turn) {
      for (const size_t method : {0, 1})
        CHECK(opened.run(3, method) == TENON_OK);
    }
    CHECK(strict.replays() == replays + 11 && strict.recordings() == recordings + 2);
    CHECK(strict.is_right());
  }
  CHECK(strict.recordings() == recordings && strict.is_right());
  const OpenedOnDevice each(strict, file.path, /*commit_each=*/true);
  for (int turn = 0; turn < 3; ++turn)
    CHECK(each.run(2) == TENON_OK);
  CHECK(strict.replays() == replays + 11 && strict.is_right());
}

TEST(state_is_changed_by_replays_and_reset) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
  const OpenedOnDevice opened(strict, file.path);
  const auto replays = strict.replays();
  for (int turn = 0; turn < 3; ++turn) {
    float expected = 2;
    for (const float value : {1.0f, 2.0f, -0.5f, 3.0f}) {
      expected *= value * value;
      CHECK(first_of(opened, kGrow, value) == expected);
    }
    tenon_status status{};
    CHECK(tenon_reset(opened.program, &status) == TENON_OK);
  }
  CHECK(strict.replays() == replays + 11 && strict.is_right());
}

TEST(a_check_of_a_kernel_fails_in_the_runs_where_it_does) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
  const OpenedOnDevice opened(strict, file.path);
  const auto replays = strict.replays();
  for (const float value : {1.0f, -1.0f, 2.0f, -2.0f, -3.0f, 3.0f}) {
    const auto found = first_of(opened, kChecked, value, value < 0 ? TENON_OUT_OF_RANGE : TENON_OK);
    CHECK(value < 0 || found == value * value * 5);
  }
  CHECK(strict.replays() == replays + 5 && strict.is_right());
}

TEST(a_run_that_failed_is_replayed_no_more) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
  const OpenedOnDevice opened(strict, file.path);
  const auto replays = strict.replays(), recordings = strict.recordings();
  for (int failed = 0; failed < 4; ++failed) {
    for (int turn = 0; turn < failed; ++turn)
      CHECK(opened.run(2) == TENON_OK);
    strict.fail_commits(1);
    CHECK(opened.run(2) == TENON_ERROR && strict.recordings() == recordings);
  }
  // Neither is one whose copies the device refuses, before or behind the kernels.
  for (int turn = 0; turn < 3; ++turn)
    CHECK(opened.run(2) == TENON_OK);
  for (const int taken : {2, 3, 4}) {
    strict.copies(taken);
    CHECK(opened.run(2) == TENON_ERROR && strict.recordings() == recordings);
    strict.copies(-1);
    for (int turn = 0; turn < 3; ++turn)
      CHECK(opened.run(2) == TENON_OK && strict.recordings() == recordings + (turn > 0));
  }
  CHECK(strict.replays() > replays && strict.is_right());
}

TEST(a_device_that_refuses_to_record_runs_kernels_one_by_one) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
  const auto replays = strict.replays(), recordings = strict.recordings();
  for (const int step : {1, 2, 3}) {
    const OpenedOnDevice opened(strict, file.path);
    strict.refuse_recordings(step);
    for (int turn = 0; turn < 4; ++turn)
      CHECK(opened.run(2) == TENON_OK && strict.is_right());
    for (const float value : {1.0f, -1.0f, -1.0f, 2.0f})
      first_of(opened, kChecked, value, value < 0 ? TENON_OUT_OF_RANGE : TENON_OK);
    strict.refuse_recordings(0);
    // It is not asked again.
    CHECK(opened.run(2) == TENON_OK && strict.recordings() == recordings + (step == 2));
    CHECK(strict.is_right());
  }
  CHECK(strict.replays() == replays + 3);  // of two kernels, where the third is refused
}

TEST(memory_that_was_released_is_named_by_no_replay) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
  const OpenedOnDevice opened(strict, file.path);
  const auto replays = strict.replays();
  for (int turn = 0; turn < 3; ++turn) {
    for (int k = 0; k < 3; ++k)
      CHECK(opened.run(2) == TENON_OK);
    // Another method needs a block of another size, for which all that is unused is released.
    strict.memory(0);
    first_of(opened, kChecked, 1, TENON_OUT_OF_MEMORY);
    CHECK(opened.run(3) == TENON_OUT_OF_MEMORY);
    strict.memory(UINT64_MAX);
    // Other blocks have the places from before.
    const OpenedOnDevice other(strict, file.path);
    CHECK(other.run(1) == TENON_OK && opened.run(3) == TENON_OK);
    CHECK(strict.is_right());
  }
  CHECK(strict.replays() > replays);
}

TEST(threads_replay_one_program_while_others_use_the_device) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
  TwoQueues queues(strict);
  const auto replays = strict.replays(), recordings = strict.recordings();
  for (int turn = 0; turn < 5; ++turn) {
    const OpenedOnDevice opened(strict, file.path);
    const auto work = [&](float value) {
      for (int k = 0; k < 20; ++k)
        CHECK(opened.run(value, k % 2) == TENON_OK);
    };
    std::thread other(work, 2.0f), third(work, 3.0f), fourth([&] {
      // What it launches is its own and not recorded: the device fails in it once each time.
      for (int k = 0; k < 50; ++k) {
        queues.launch(*queues.one, -1);
        CHECK(tests::fails(queues.one->commit()));
      }
    });
    work(1.0f);
    other.join();
    third.join();
    fourth.join();
    CHECK(strict.recordings() == recordings + 2);
  }
  CHECK(strict.replays() == replays + 5 * 58 && strict.is_right());
}
