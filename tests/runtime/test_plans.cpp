// Plans: reading, checking, and running them on this processor and on a queue that works later.

#include <cmath>
#include <deque>
#include <random>

#include "check.h"
#include "plans.h"
#include "runtime/archive.h"
#include "runtime/plan_check.h"
#include "runtime/run.h"

using namespace tenon;
using tests::Draft;
using tests::floats;
using Kind = Slot::Kind;

namespace {

// result = x + y over n floats; a number beyond the limit fails the check.
void add(void* const* pointers, const int64_t* numbers, int64_t* status) {
  const auto* x = static_cast<const float*>(pointers[0]);
  const auto* y = static_cast<const float*>(pointers[1]);
  auto* result = static_cast<float*>(pointers[2]);
  for (int64_t k = 0; k < numbers[0]; ++k) {
    if (status != nullptr && x[k] > 1000 && status[0] == 0) {
      status[0] = 1;
      status[1] = static_cast<int64_t>(x[k]);
      status[2] = 1000;
    }
    result[k] = x[k] + y[k];
  }
}

// ((x + c) + x) in an arena's temporary, then a block, then the output.
Draft chain(size_t blocks = 1) {
  Draft draft;
  draft.slots = {{Kind::input, 0, 32}, {Kind::constant, 0}, {Kind::temporary, 0, 32}};
  for (size_t k = 0; k < blocks; ++k)
    draft.slots.push_back({Kind::block, 32});
  draft.slots.push_back({Kind::output, 32});
  draft.inputs = {0};
  draft.outputs = {draft.slots.size() - 1};
  draft.arena = 32;
  draft.kernels = {{"kernels/k.so", "add"}};
  draft.constants = {{1, 2, 3, 4, 5, 6, 7, 8}};
  draft.steps.push_back({tests::Kernel{0, {0, 1, 2}, {8}, {{-1}}}});
  size_t last = 2;
  for (size_t k = 0; k <= blocks; ++k) {
    const auto next = 3 + k;
    std::vector<size_t> released;
    if (last > 2)
      released.push_back(last);
    if (k == blocks)
      released.push_back(0);
    draft.steps.push_back({tests::Kernel{0, {last, 0, next}, {8}, {}}, {next}, released});
    last = next;
  }
  return draft;
}

PlanData plan_of(const Draft& draft) {
  auto found = read_plan(draft.bytes());
  check_plan(found, /*calls=*/0);
  for (auto& step : found.plan.steps) {
    if (auto* kernel = std::get_if<KernelStep>(&step.work))
      kernel->function = &add;
    else
      std::get<CallStep>(step.work).written.resize(std::get<CallStep>(step.work).tensors.size());
  }
  return std::move(found.plan);
}

// Memory by slot, and a call that doubles its tensor into its result.
class Host : public RunHost {
 public:
  explicit Host(const PlanData& plan, void* output) : plan_(plan), output_(output) {}

  void* arena(size_t nbytes) override {
    return (arena_ = std::string(nbytes + 1, 'a')).data();
  }
  void* allocate(size_t slot, size_t nbytes) override {
    if (plan_.slots[slot].kind == Kind::output)
      return output_;
    ++held;
    most_held = std::max(most_held, held);
    return memory_.emplace_back(std::string(nbytes + 1, 'b')).data();
  }
  void release(size_t slot) override {
    held -= plan_.slots[slot].kind != Kind::input;
  }
  void input_done(size_t) override {
    ++inputs_done;
  }
  std::shared_ptr<void> staging(size_t nbytes) override {
    return {new char[nbytes + 1], [](void* memory) { delete[] static_cast<char*>(memory); }};
  }
  static void twice(std::span<void* const> tensors, void* result) {
    const auto* x = static_cast<const float*>(tensors[0]);
    if (x[0] < 0)
      fail(ErrorKind::error, "a negative number");
    for (int k = 0; k < 8; ++k)
      static_cast<float*>(result)[k] = 2 * x[k];
  }
  void call(size_t, std::span<void* const> tensors, std::span<void*> results) override {
    if (results[0] == nullptr)
      results[0] = memory_.emplace_back(std::string(33, 'c')).data();
    twice(tensors, results[0]);
  }
  LaterCall call_later(size_t) override {
    return [](std::span<void* const> tensors, std::span<void* const> results) {
      twice(tensors, results[0]);
    };
  }
  void wait(const char*, bool) override {
    ++waits;
    if (on_wait)
      on_wait();
  }
  void drain() noexcept override {}

  int held = 0, most_held = 0, inputs_done = 0, waits = 0;
  std::function<void()> on_wait;

 private:
  const PlanData& plan_;
  void* output_;
  std::string arena_;
  std::deque<std::string> memory_;
};

// A queue that runs what it has when it is told to.
class LateQueue final : public Queue {
 public:
  explicit LateQueue(bool calls) : calls_(calls) {}
  void copy(void* dst, const void* src, size_t nbytes, CopyKind) override {
    commands.emplace_back([=] { std::memcpy(dst, src, nbytes); });
  }
  void launch(const Launch& launch) override {
    const auto numbers = [](std::span<const int64_t> all) {
      return std::vector<int64_t>(all.begin(), all.end());
    };
    CHECK(launch.nbytes.size() == launch.pointers.size());
    nexts.push_back(launch.next);
    shapes.push_back({numbers(launch.grid), numbers(launch.group), {launch.scratch}});
    commands.emplace_back([kernel = launch.kernel,
                           status = launch.status,
                           p = std::vector<void*>(launch.pointers.begin(), launch.pointers.end()),
                           n = numbers(launch.numbers)] {
      CHECK(n.size() == 1);
      kernel(p.data(), n.data(), status.data());
    });
  }
  bool runs_calls() const override {
    return calls_;
  }
  void call(Work work, std::span<void* const> pointers, std::span<const size_t> nbytes) override {
    CHECK(nbytes.size() == pointers.size());
    commands.emplace_back(
        [work, p = std::vector<void*>(pointers.begin(), pointers.end())] { work(p); });
  }
  void work() {
    for (; !commands.empty(); commands.pop_front())
      commands.front()();
  }
  std::deque<std::function<void()>> commands;
  std::vector<Next> nexts;
  std::vector<std::vector<std::vector<int64_t>>> shapes;  // grid, group and scratch of each launch
  int refusals = 0;                                       // of the next commits
  int started = 0;

 private:
  class Later final : public Commit {
   public:
    explicit Later(LateQueue& queue) : queue_(queue) {}
    bool passed() override {
      return queue_.commands.empty();
    }
    void wait() override {
      queue_.work();
    }
    double seconds() override {
      return 0;
    }
    std::shared_ptr<Failure> failure() override {
      return nullptr;
    }

   private:
    LateQueue& queue_;
  };

  Ticket start() override {
    if (refusals > 0) {
      --refusals;
      fail(ErrorKind::error, "the driver is busy");
    }
    ++started;
    return std::make_shared<Later>(*this);
  }

  const bool calls_;
};

// A call between two kernels: (2 (x + c)) + x.
Draft with_call(Kind result) {
  auto draft = chain(1);
  draft.slots[3] = result == Kind::external ? Slot{result, 0, 32} : Slot{result, 32};
  const auto made = result == Kind::block ? std::vector<size_t>{3} : std::vector<size_t>{};
  draft.steps[1] = {tests::Call{"aten::mul\nTensor", {floats(2, 8)}, {floats(3, 8)}}, made};
  return draft;
}

}  // namespace

TEST(a_plan_runs_at_once) {
  const auto plan = plan_of(chain());
  float x[8], result[8];
  for (int k = 0; k < 8; ++k)
    x[k] = static_cast<float>(k);
  Host host(plan, result);
  const auto queue = host_queue();
  Run run(plan, *queue, /*at_once=*/true, host);
  run.place(0, x);
  run.execute();
  for (int k = 0; k < 8; ++k)
    CHECK(result[k] == 3 * x[k] + static_cast<float>(k + 1));
  CHECK(run.failures()().empty() && host.inputs_done == 1);
}

TEST(blocks_are_let_go_of_after_their_last_step) {
  auto draft = chain(6);
  for (auto& slot : draft.slots) {
    if (slot.kind == Kind::block)
      slot.number = 1 << 20;  // more than lies on the stack
  }
  const auto plan = plan_of(draft);
  float x[8] = {}, result[8];
  Host host(plan, result);
  const auto queue = host_queue();
  Run run(plan, *queue, /*at_once=*/true, host);
  run.place(0, x);
  run.execute();
  CHECK(host.most_held == 2 && host.held == 0);
}

TEST(a_check_that_fails_is_told_and_nothing_stops) {
  const auto plan = plan_of(chain());
  float x[8] = {0, 2000, 0, 0, 0, 0, 0, 0}, result[8];
  Host host(plan, result);
  const auto queue = host_queue();
  Run run(plan, *queue, /*at_once=*/true, host);
  run.place(0, x);
  run.execute();
  const auto failures = run.failures()();
  CHECK(failures.size() == 1 && failures[0].calls == std::vector<int32_t>{-1});
  CHECK_RAISES("index 2000 is out of bounds", failures[0].failure->raise());
  CHECK(result[1] == 6002);
}

TEST(calls_bring_their_results_or_fill_them) {
  for (const auto kind : {Kind::external, Kind::block, Kind::temporary}) {
    auto draft = with_call(kind);
    if (kind == Kind::temporary) {
      draft.arena = 64;
      draft.slots[3] = {kind, 32, 32};
      draft.steps[2].released = {0};
    }
    const auto plan = plan_of(draft);
    float x[8] = {1, 1, 1, 1, 1, 1, 1, 1}, result[8];
    Host host(plan, result);
    const auto queue = host_queue();
    Run run(plan, *queue, /*at_once=*/true, host);
    run.place(0, x);
    run.execute();
    CHECK(result[0] == 5 && result[7] == 19);
  }
}

TEST(a_call_that_fails_leaves_memory_for_later_steps) {
  const auto plan = plan_of(with_call(Kind::external));
  float x[8] = {-5}, result[8];
  Host host(plan, result);
  const auto queue = host_queue();
  Run run(plan, *queue, /*at_once=*/true, host);
  run.place(0, x);
  run.execute();
  const auto failures = run.failures()();
  CHECK(failures.size() == 1);
  CHECK_RAISES("a negative number", failures[0].failure->raise());
}

TEST(a_device_is_given_all_and_told_what_comes_next) {
  for (const bool runs_calls : {false, true}) {
    const auto plan = plan_of(with_call(Kind::external));
    float x[8] = {1, 1, 1, 1, 1, 1, 1, 1}, result[8] = {};
    Host host(plan, result);
    LateQueue queue(runs_calls);
    host.on_wait = [&] { queue.work(); };
    Run run(plan, queue, /*at_once=*/false, host);
    run.place(0, x);
    run.execute();
    CHECK(result[0] == 0 && host.waits == (runs_calls ? 0 : 1));
    queue.work();
    CHECK(result[0] == 5 && result[7] == 19 && run.failures()().empty());
    CHECK(queue.nexts[0] == (runs_calls ? Next::device : Next::host));
    CHECK(queue.nexts[1] == Next::nothing);
  }
}

TEST(a_result_that_nobody_wants_is_null_on_a_device_too) {
  struct ResultsOf : Host {
    using Host::Host;
    LaterCall call_later(size_t) override {
      return [this](std::span<void* const> tensors, std::span<void* const> results) {
        unwanted = results[1];
        twice(tensors, results[0]);
      };
    }
    void* unwanted = this;
  };
  for (const bool runs_calls : {false, true}) {
    auto plan = plan_of(with_call(Kind::external));
    for (auto& step : plan.steps) {
      if (auto* call = std::get_if<CallStep>(&step.work))
        call->results.emplace_back();
    }
    float x[8] = {1, 1, 1, 1, 1, 1, 1, 1}, result[8] = {};
    ResultsOf host(plan, result);
    LateQueue queue(runs_calls);
    host.on_wait = [&] { queue.work(); };
    Run run(plan, queue, /*at_once=*/false, host);
    run.place(0, x);
    run.execute();
    queue.work();
    CHECK(result[7] == 19 && host.unwanted == nullptr);
  }
}

TEST(a_commit_that_is_refused_leaves_nothing_for_later) {
  const auto plan = plan_of(chain());
  float x[8] = {1, 1, 1, 1, 1, 1, 1, 1}, result[8] = {};
  LateQueue queue(/*calls=*/false);
  {
    Host host(plan, result);
    Run run(plan, queue, /*at_once=*/false, host);
    run.place(0, x);
    run.execute();
    queue.refusals = 1;
    CHECK_RAISES("the driver is busy", queue.commit());
    CHECK(queue.commands.empty() && result[0] == 4);  // its memory goes now
  }
  CHECK(queue.commit()->passed() && queue.started == 2);
}

TEST(a_device_that_refuses_twice_is_lost_and_runs_nothing_more) {
  LateQueue queue(/*calls=*/false);
  float from = 1, to = 0;
  queue.copy(&to, &from, sizeof(to), CopyKind::host_to_device);
  queue.refusals = 2;
  CHECK_RAISES("the driver is busy", queue.commit());
  CHECK_RAISES("the device is lost since a commit failed: the driver is busy", queue.commit());
  CHECK(queue.started == 0 && to == 0);
}

TEST(a_launch_has_its_grid_apart_from_its_numbers) {
  auto draft = chain();
  for (const size_t step : {0, 2})
    std::get<tests::Kernel>(draft.steps[step].work).sizes = {8, 4, 2, 64, 32, 1000};
  draft.grids = {0, 2, 2, 1, 2, 3, 2, 0};
  using Where = SizedNumber::Where;
  draft.numbers = {{Where::kernel, 0, 1, {}, 0, SizeExpression::of(SizeExpression::symbol, 0)}};
  auto found = read_plan(draft.bytes());
  check_plan(found, 0);
  const int64_t seven[] = {7};
  CHECK(give_sizes(found.plan, found.numbers, seven));
  for (auto& step : found.plan.steps)
    std::get<KernelStep>(step.work).function = &add;
  float x[8] = {}, result[8] = {};
  Host host(found.plan, result);
  LateQueue queue(/*calls=*/true);
  Run run(found.plan, queue, /*at_once=*/false, host);
  run.place(0, x);
  run.execute();
  queue.work();
  using Shape = std::vector<std::vector<int64_t>>;
  CHECK(queue.shapes[0] == (Shape{{7, 2}, {64, 32}, {1000}}));
  CHECK(queue.shapes[1] == (Shape{{}, {}, {0}}));
  CHECK(queue.shapes[2] == (Shape{{4, 2, 64}, {32, 1000}, {0}}));
}

TEST(sizes_are_given_to_a_plan_of_any_size) {
  auto draft = chain();
  const auto number = SizeExpression::of(SizeExpression::symbol, 0);
  const auto bytes =
      number.joined(SizeExpression::multiply, SizeExpression::of(SizeExpression::constant, 4));
  using Where = SizedNumber::Where;
  draft.numbers = {
      {Where::kernel, 0, 0, {}, 0, number},
      {Where::slot, 3, 0, {}, 0, bytes},
      {Where::bytes, 0, 0, {}, 0, bytes}};
  auto found = read_plan(draft.bytes());
  check_plan(found, 0);
  const int64_t five[] = {5};
  CHECK(give_sizes(found.plan, found.numbers, five));
  CHECK(std::get<KernelStep>(found.plan.steps[0].work).sizes[0] == 5);
  CHECK(found.plan.slots[3].number == 20 && found.plan.slots[0].nbytes == 20);
  const int64_t negative[] = {-5};
  CHECK(!give_sizes(found.plan, found.numbers, negative));
}

TEST(plans_that_cannot_run_are_refused) {
  const auto refused = [](const char* text, const std::function<void(Draft&)>& change) {
    auto draft = chain();
    change(draft);
    const auto said = tests::error_of([&] { check_plan(read_plan(draft.bytes()), 0); });
    if (said.find(text) == std::string::npos)
      tests::failed(__FILE__, __LINE__, "the error is '" + said + "', and no '" + text + "'");
  };
  using K = tests::Kernel;
  refused("no slot", [](Draft& d) { std::get<K>(d.steps[0].work).slots = {0, 1, 99}; });
  refused("no kernel", [](Draft& d) { std::get<K>(d.steps[0].work).kernel = 1; });
  refused("no call", [](Draft& d) { std::get<K>(d.steps[0].work).checks = {{0}}; });
  refused("has no memory", [](Draft& d) { d.steps[1].allocated = {}; });
  refused("is not allocated", [](Draft& d) { d.steps[1].allocated = {2}; });
  refused("is not let go of", [](Draft& d) { d.steps[1].released = {4}; });
  refused("has no memory", [](Draft& d) { d.steps[0].released = {0}; });
  refused("is not passed", [](Draft& d) { d.inputs = {0, 0}; });
  refused("nobody passes", [](Draft& d) { d.inputs = {}; });
  refused("no constant", [](Draft& d) { d.constants = {}; });
  refused("no kind of a slot", [](Draft& d) { d.slots[2].kind = static_cast<Kind>(9); });
  for (const auto* path : {"../k.so", "/k.so", "a//b", "", "a/..", "."})
    refused("no name of a file", [path](Draft& d) { d.kernels[0].object = path; });
  refused("no name of a kernel", [](Draft& d) { d.kernels[0].symbol = ""; });
  refused("stands nowhere", [](Draft& d) { d.numbers = {{SizedNumber::Where::kernel, 0, 7}}; });
  refused("stands nowhere", [](Draft& d) { d.numbers = {{SizedNumber::Where::slot, 70}}; });
  for (const auto& grids : std::vector<std::vector<size_t>>{{9, 0, 0, 0}, {0, 0, 0}, {0}})
    refused("a grid of no kernel", [&](Draft& d) { d.grids = grids; });
  for (const auto& grids : std::vector<std::vector<size_t>>{
           {0, 2, 0, 0}, {0, 0, 1, 0}, {0, 1, 0, 1}, {0, 0, 0, 2}, {0, size_t{1} << 62, 0, 0}})
    refused("a grid without numbers", [&](Draft& d) { d.grids = grids; });
  refused("none of a slot", [](Draft& d) { d.numbers = {{SizedNumber::Where::slot, 1}}; });
}

TEST(memory_beyond_what_is_there_is_refused) {
  const int64_t in[] = {32}, out[] = {32}, less[] = {31};
  const auto allowed = [&](const std::function<void(Draft&)>& change) {
    auto draft = with_call(Kind::block);
    change(draft);
    return check_memory(read_plan(draft.bytes()).plan, in, out);
  };
  CHECK(allowed([](Draft&) {}));
  CHECK(!check_memory(read_plan(chain().bytes()).plan, less, out));
  CHECK(!check_memory(read_plan(chain().bytes()).plan, in, less));
  CHECK(!allowed([](Draft& d) { d.slots[2].number = 8; }));  // beyond the arena
  CHECK(!allowed([](Draft& d) { d.slots[2].nbytes = 64; }));
  CHECK(!allowed([](Draft& d) { d.slots[3].number = 16; }));  // a result's block
  CHECK(!allowed([](Draft& d) { d.arena = size_t{1} << 60; }));
  CHECK(!allowed([](Draft& d) { d.slots[3].number = SIZE_MAX; }));
}

// With a folder, writes these for who changes them for longer (tests/runtime/fuzz/plan.cpp).
TEST(plans_for_the_fuzzer) {
  if (tests::argument == nullptr)
    return;
  int count = 0;
  for (const auto& draft : {chain(), chain(3), with_call(Kind::external), with_call(Kind::block)})
    CHECK(write_whole(text_of("{}/{}", tests::argument, count++), draft.bytes()));
}

// Each change of a byte is refused, or gives a plan that is as sound as this one.
TEST(damage_is_no_crash) {
  std::mt19937 random(1);
  for (const auto& draft : {chain(3), with_call(Kind::external)}) {
    const auto bytes = draft.bytes();
    for (size_t k = 0; k < bytes.size() * 64; ++k) {
      auto changed = bytes;
      const auto place = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          changed[place] = static_cast<char>(random());
          break;
        case 1:
          changed.resize(place);
          break;
        default:
          changed.insert(place, 1, static_cast<char>(random()));
      }
      try {
        const auto found = read_plan(changed);
        check_plan(found, 0);
        const std::vector<int64_t> in(found.plan.inputs.size(), 32);
        const std::vector<int64_t> out(found.plan.outputs.size(), 32);
        check_memory(found.plan, in, out);
      } catch (const Error&) {
      }
    }
  }
}
