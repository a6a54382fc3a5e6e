// Devices that others use as well, that have little memory, and that refuse what they are given.

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "check.h"
#include "runtime/archive.h"
#include "strict.h"

using namespace tenon;
using tests::fails;
using tests::kBlock;
using tests::kBytes;
using tests::kFloats;
using tests::kStrict;
using tests::OpenedOnDevice;
using tests::powers;
using tests::Strict;
using tests::TemporaryFile;
using tests::TwoQueues;

TEST(a_block_stays_on_the_device_while_the_queue_uses_it) {
  const Strict strict;
  // A program's blocks share memory.
  const TemporaryFile file(tests::strict_program().bytes());
  {
    const OpenedOnDevice opened(strict, file.path);
    CHECK(opened.code == TENON_OK);
    strict.memory(13 * kBlock);
    CHECK(opened.run(2) == TENON_OK && opened.run(3) == TENON_OK);
    strict.memory(UINT64_MAX);
  }
  // Those of a plan by itself do so too.
  const TemporaryFile kernels("multiply", "kernels");
  auto draft = powers();
  draft.kernels = {{"kernels", "multiply", checksum("multiply")}};
  const auto bytes = draft.bytes();
  tenon_device* device = nullptr;
  tenon_plan* plan = nullptr;
  tenon_status status{};
  CHECK(tenon_open_device(strict.path.c_str(), 0, &device, &status) == TENON_OK);
  CHECK(
      tenon_read_plan(device, bytes.data(), bytes.size(), kernels.folder.c_str(), &plan, &status) ==
      TENON_OK);
  std::vector<float> x(kFloats, 2), w(kFloats, 5), a(kFloats), b(kFloats);
  const void* inputs[] = {x.data(), w.data()};
  void* outputs[] = {a.data(), b.data()};
  uint64_t blocks = 1;
  for (; strict.memory(blocks * kBlock),
         tenon_run_plan(plan, inputs, outputs, &status) == TENON_OUT_OF_MEMORY;
       ++blocks)
    CHECK(strict.is_right());
  CHECK(blocks == 10);
  strict.memory(UINT64_MAX);
  CHECK(tenon_run_plan(plan, inputs, outputs, &status) == TENON_OK && strict.is_right());
  CHECK(a[0] == 16 && b[kFloats - 1] == 240);
  tenon_free_plan(plan);
  tenon_close_device(device);
  CHECK(strict.is_right());
}

TEST(nothing_is_left_in_the_queue_of_a_device_that_refuses_a_copy) {
  const Strict strict;
  const TemporaryFile file(tests::strict_program().bytes());
  int refused = 0;
  for (bool is_over = false; !is_over; ++refused) {
    strict.copies(refused);
    const OpenedOnDevice opened(strict, file.path);
    is_over = opened.code == TENON_OK;
    CHECK(strict.is_right());
  }
  CHECK(refused == 5);  // two weights and two states before
  strict.copies(-1);
  const OpenedOnDevice opened(strict, file.path);
  tenon_status status{};
  for (refused = 0; strict.copies(refused), tenon_reset(opened.program, &status) != TENON_OK;
       ++refused)
    CHECK(strict.is_right());
  CHECK(refused == 2);
  for (refused = 0; strict.copies(refused), opened.run(2) != TENON_OK; ++refused)
    CHECK(strict.is_right());
  CHECK(refused == 5);  // two constants, an input, and two outputs
  strict.copies(-1);
  CHECK(opened.run(3) == TENON_OK && strict.is_right());
}

TEST(several_programs_use_one_device) {
  const Strict strict;
  const TemporaryFile file(tests::strict_program().bytes());
  const auto work = [&](float value) {
    for (int turn = 0; turn < 5; ++turn) {
      const OpenedOnDevice opened(strict, file.path);
      CHECK(opened.code == TENON_OK);
      for (int k = 0; k < 20; ++k)
        CHECK(opened.run(value) == TENON_OK);
    }
  };
  std::thread other(work, 2.0f), third(work, 1.0f);
  work(3.0f);
  other.join();
  third.join();
  CHECK(strict.is_right());
}

TEST(a_failure_is_told_to_who_enqueued_the_work) {
  const Strict strict;
  TwoQueues queues(strict);
  CHECK(queues.library == TargetLibrary::open(strict.path));
  auto &one = queues.one, &other = queues.other;
  const auto launch = [&](Queue& queue, int64_t floats) { queues.launch(queue, floats); };
  const auto fails = [](Queue& queue) { return tests::fails(queue.commit()); };
  CHECK(!fails(*one) && !fails(*other));
  for (int turn = 0; turn < 3; ++turn) {
    launch(*one, -1), launch(*other, 1), launch(*one, 1);
    CHECK(!fails(*other) && fails(*one));
    launch(*one, 1), launch(*other, 1), launch(*one, -1);
    CHECK(fails(*one) && !fails(*other));
    launch(*one, 1), launch(*other, -1);
    CHECK(!fails(*one) && fails(*other));
    launch(*other, 1);
    CHECK(!fails(*one) && !fails(*other));
  }
  const int64_t floats[] = {4}, runs[] = {4}, others[] = {2};
  char place = 0;
  void* const pointers[] = {&place, &place, &place};
  const size_t nbytes[] = {16, 16, 16};
  Launch with_grid{
      .pointers = pointers,
      .nbytes = nbytes,
      .numbers = floats,
      .grid = runs,
      .group = runs,
      .scratch = 16};
  one->launch(with_grid);
  CHECK(!fails(*one));
  with_grid.group = others;
  CHECK_RAISES("one group of all its floats", one->launch(with_grid));
  one = nullptr;
  CHECK(!fails(*other));
  CHECK(strict.is_right());
}

TEST(queues_may_take_any_number_of_turns_before_a_commit) {
  const Strict strict;
  strict.yields(false);
  TwoQueues queues(strict);
  constexpr int kTurns = 30'000;
  for (int turn = 0; turn < kTurns; ++turn)
    queues.launch(turn % 2 == 0 ? *queues.one : *queues.other, turn == 4 ? -1 : 1);
  CHECK(fails(queues.one->commit()) && !fails(queues.other->commit()));
  for (int turn = 0; turn < kTurns; ++turn)
    queues.launch(turn % 2 == 0 ? *queues.one : *queues.other, 1);
  CHECK(!fails(queues.one->commit()) && !fails(queues.other->commit()));
  CHECK(strict.is_right());
}

TEST(a_kernel_is_unloaded_once_the_device_has_run_it) {
  const Strict strict;
  TwoQueues queues(strict);
  const auto unloaded = [&] { return strict.find<int()>("strict_unloaded")(); };
  strict.late(true);
  const auto before = unloaded();
  int made = 0;
  const auto load = [&] {
    queues.kernel = queues.library->load(std::to_string(++made), "multiply");
  };
  load();
  queues.kernel = nullptr;
  CHECK(unloaded() == before + 1);  // nobody has launched it
  load();
  queues.launch(*queues.one, 1);
  queues.kernel = nullptr;
  CHECK(unloaded() == before + 1);
  const auto first = queues.one->commit();
  load();
  queues.launch(*queues.other, 1);
  const auto second = queues.other->commit();
  CHECK(unloaded() == before + 1);
  first->wait();
  load();
  CHECK(unloaded() == before + 2);  // the first; the second is in flight
  second->wait();
  queues.kernel = nullptr;
  CHECK(unloaded() == before + 4);
  CHECK(strict.is_right());
}

TEST(kernels_go_while_others_are_loaded) {
  const Strict strict;
  TwoQueues queues(strict);
  // A load looks at all that are there, and may be the last to let go of one.
  const auto work = [&](const std::string& code) {
    for (int turn = 0; turn < 100'000; ++turn)
      queues.library->load(code, "multiply");
  };
  alarm(60);
  std::thread one(work, "one"), other(work, "other");
  work("a third");
  one.join();
  other.join();
  alarm(0);
  CHECK(strict.is_right());
}

TEST(what_a_queue_has_enqueued_is_over_when_the_queue_goes) {
  const Strict strict;
  strict.late(true);
  for (const bool commits : {false, true}) {
    TwoQueues queues(strict);
    queues.launch(*queues.one, 1);
    if (commits)
      queues.one->commit();
    queues.one = nullptr;
    CHECK(strict.is_right() && strict.find<int()>("strict_in_flight")() == 0);
  }
}

TEST(a_device_that_refuses_to_start_work_is_tried_again_and_then_lost) {
  const TemporaryFile copy(*read_whole(kStrict), "libcopy.so");
  const Strict strict(copy.path);
  auto queues = std::make_unique<TwoQueues>(strict);
  auto& one = *queues->one;
  auto& other = *queues->other;
  queues->launch(one, 1);
  strict.refuse_commits(1);
  CHECK_RAISES("it starts nothing", one.commit());
  CHECK(strict.is_right());  // it ran, as what it names ends with this error
  queues->launch(one, 1);
  CHECK(!fails(one.commit()));
  queues->launch(one, 1);
  strict.refuse_commits(1);
  CHECK_RAISES("it starts nothing", queues->launch(other, 1));
  CHECK(!fails(other.commit()) && !fails(one.commit()));
  queues->launch(one, 1);
  strict.refuse_commits(2);
  CHECK_RAISES("it starts nothing", one.commit());
  // What it names may be gone: no one starts it.
  for (int turn = 0; turn < 2; ++turn) {
    CHECK_RAISES("the device is lost", queues->launch(other, 1));
    CHECK_RAISES("the device is lost", other.commit());
    CHECK_RAISES("the device is lost", queues->one->commit());
    queues->one = nullptr;
    CHECK(strict.find<size_t()>("strict_enqueued")() == 1);
    if (turn == 0)
      queues->one = queues->make();
  }
}

TEST(two_copies_of_the_runtime_take_turns_on_a_device) {
  const TemporaryFile copy(*read_whole(kStrict), "libshared.so");
  const Strict strict(copy.path);
  const auto path = tests::folder_of_this() + "../libtenon_rt.so";
  void* const runtime = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(runtime != nullptr);
  const auto of_copy = [&]<class Function>(Function*, const char* name) {
    auto* found = reinterpret_cast<Function*>(dlsym(runtime, name));
    CHECK(found != nullptr);
    return found;
  };
  const auto open = of_copy(&tenon_open_device, "tenon_open_device");
  const auto close = of_copy(&tenon_close_device, "tenon_close_device");
  const auto read = of_copy(&tenon_read_plan, "tenon_read_plan");
  const auto run = of_copy(&tenon_run_plan, "tenon_run_plan");
  const auto free = of_copy(&tenon_free_plan, "tenon_free_plan");
  CHECK(run != &tenon_run_plan);
  const TemporaryFile kernels("multiply", "kernels");
  auto draft = powers();
  draft.kernels = {{"kernels", "multiply", checksum("multiply")}};
  const auto bytes = draft.bytes();
  tenon_device* device = nullptr;
  tenon_plan* plan = nullptr;
  tenon_status status{};
  CHECK(open(strict.path.c_str(), 0, &device, &status) == TENON_OK);
  CHECK(
      read(device, bytes.data(), bytes.size(), kernels.folder.c_str(), &plan, &status) == TENON_OK);
  std::vector<float> x(kFloats, 2), w(kFloats, 5), a(kFloats), b(kFloats);
  const void* inputs[] = {x.data(), w.data()};
  void* outputs[] = {a.data(), b.data()};
  TwoQueues queues(strict);
  for (int turn = 0; turn < 3; ++turn) {
    queues.launch(*queues.one, -1);
    CHECK(run(plan, inputs, outputs, &status) == TENON_OK);
    queues.launch(*queues.other, 1);
    CHECK(!fails(queues.other->commit()) && fails(queues.one->commit()));
  }
  std::thread other([&] {
    for (int turn = 0; turn < 100; ++turn)
      CHECK(run(plan, inputs, outputs, &status) == TENON_OK);
  });
  for (int turn = 0; turn < 300; ++turn) {
    queues.launch(*queues.one, 1);
    CHECK(!fails(queues.one->commit()));
  }
  other.join();
  CHECK(a[0] == 16 && b[kFloats - 1] == 240);
  free(plan);
  close(device);
  CHECK(strict.is_right());
}

TEST(a_child_of_a_fork_has_no_device) {
  const Strict strict;
  const TemporaryFile file(tests::strict_program().bytes());
  auto opened = std::make_unique<OpenedOnDevice>(strict, file.path);
  auto queues = std::make_unique<TwoQueues>(strict);
  queues->launch(*queues->one, 1);
  const auto ticket = queues->one->commit();
  const auto child = fork();
  if (child == 0) {
    alarm(20);
    tenon_status status{};
    CHECK(opened->run(2) == TENON_DEVICE_LOST);
    CHECK(tenon_reset(opened->program, &status) == TENON_DEVICE_LOST);
    CHECK(std::string(status.text).find("this process was forked") == 0);
    CHECK_RAISES("this process was forked", queues->launch(*queues->one, 1));
    CHECK_RAISES("this process was forked", queues->one->commit());
    CHECK_RAISES("this process was forked", ticket->wait());
    CHECK_RAISES("this process was forked", ticket->passed());
    opened = nullptr;
    queues = nullptr;
    CHECK(strict.is_right());
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(opened->run(3) == TENON_OK && strict.is_right());
}
