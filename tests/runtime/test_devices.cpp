// Devices that others use as well, that have little memory, and that refuse what they are given.

#include <dlfcn.h>

#include <array>
#include <thread>

#include "check.h"
#include "programs.h"
#include "runtime/target_library.h"
#include "tenon.h"

using namespace tenon;
using tests::Kernel;
using tests::ProgramDraft;
using tests::TemporaryFile;

namespace {

using Kind = Slot::Kind;
using From = Source::Kind;

// The target of strict.c, which is opened once.
struct Strict {
  const std::string path = tests::folder_of_this() + "libstrict.so";
  void* const library = dlopen(path.c_str(), RTLD_NOW);
  ~Strict() {
    memory(UINT64_MAX);
    copies(-1);
  }
  template <class Function>
  Function* find(const char* name) const {
    CHECK(library != nullptr);
    return reinterpret_cast<Function*>(dlsym(library, name));
  }
  void memory(uint64_t nbytes) const {
    find<void(uint64_t)>("strict_memory")(nbytes);
  }
  void copies(int count) const {
    find<void(int)>("strict_copies")(count);
  }
  bool is_right() const {
    const char* wrong = find<const char*()>("strict_wrong")();
    if (wrong != nullptr)
      tests::failed(__FILE__, __LINE__, wrong);
    return find<size_t()>("strict_enqueued")() == 0;
  }
};

constexpr size_t kFloats = 256, kBytes = kFloats * sizeof(float), kBlock = 4096;

// Outputs are (x * x)^2 and (x * x)^2 * c * w: by a block of two pages, and then one of four.
tests::Draft powers() {
  tests::Draft draft;
  draft.slots = {
      {Kind::input, 0, kBytes},
      {Kind::input, 0, kBytes},
      {Kind::output, kBytes},
      {Kind::output, kBytes},
      {Kind::block, 2 * kBlock},
      {Kind::block, 4 * kBlock},
      {Kind::constant, 0},
      {Kind::constant, 1}};
  draft.inputs = {0, 1};
  draft.outputs = {2, 3};
  draft.constants = {std::vector<float>(kFloats, 3), std::vector<float>(kFloats, 1)};
  draft.kernels = {{"", "multiply", 0}};
  const auto multiply = [](size_t to, size_t a, size_t b) {
    return Kernel{0, {to, a, b}, {kFloats}, {}};
  };
  draft.steps = {
      {multiply(4, 0, 0), {4}, {}},
      {multiply(2, 4, 4), {2}, {4}},
      {multiply(5, 2, 6), {5}, {}},
      {multiply(5, 5, 7), {}, {}},
      {multiply(3, 5, 1), {3}, {5, 0, 1}}};
  return draft;
}

ProgramDraft program() {
  ProgramDraft draft;
  draft.target = "strict";
  draft.weights = {{"v", std::vector<float>(kFloats, 2)}, {"w", std::vector<float>(kFloats, 5)}};
  draft.states = {{"s", {kFloats}, -1}, {"t", {kFloats}, 0}};
  draft.codes = {{"source", "multiply"}};
  const std::vector<SizeExpression> sizes{tests::constant(kFloats)};
  ProgramDraft::Method method{"powers"};
  method.inputs = {{"x", DType{6}, sizes}};
  method.outputs = {{"a", DType{6}, sizes}, {"b", DType{6}, sizes}};
  method.plan_inputs = {{From::input, 0}, {From::weight, 1}};
  method.plan_outputs = {0, 1};
  method.plan = powers();
  auto other = method;
  other.name = "with the other weight";
  other.plan_inputs[1].number = 0;
  draft.methods = {method, other};
  return draft;
}

struct OpenedOnDevice {
  tenon_program* program = nullptr;
  int32_t code;
  OpenedOnDevice(const Strict& strict, const std::string& path) {
    tenon_options options{sizeof(options), strict.path.c_str()};
    tenon_status status{};
    code = tenon_open_program(path.c_str(), &options, &program, &status);
  }
  ~OpenedOnDevice() {
    tenon_close_program(program);
  }
  int32_t run(float value) const {
    std::vector<float> x(kFloats, value), a(kFloats), b(kFloats);
    const auto tensor_of = [](std::vector<float>& memory) {
      return tenon_tensor{sizeof(tenon_tensor), memory.data(), kBytes, TENON_FLOAT32, 1, {kFloats}};
    };
    const auto input = tensor_of(x);
    std::array outputs{tensor_of(a), tensor_of(b)};
    tenon_status status{};
    const auto found = tenon_run(program, 0, &input, 1, outputs.data(), 2, &status);
    const auto power = value * value * value * value;
    for (size_t k = 0; found == TENON_OK && k < kFloats; ++k)
      CHECK(a[k] == power && b[k] == power * 15);
    return found;
  }
};

}  // namespace

TEST(a_block_stays_on_the_device_while_the_queue_uses_it) {
  const Strict strict;
  // A program's blocks share memory.
  const TemporaryFile file(program().bytes());
  {
    const OpenedOnDevice opened(strict, file.path);
    CHECK(opened.code == TENON_OK);
    strict.memory(13 * kBlock);
    CHECK(opened.run(2) == TENON_OK && opened.run(3) == TENON_OK);
    strict.memory(UINT64_MAX);
  }
  // Those of a plan by itself do not.
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
  for (const uint64_t most : {10 * kBlock, 11 * kBlock, UINT64_MAX}) {
    strict.memory(most);
    const auto code = tenon_run_plan(plan, inputs, outputs, &status);
    CHECK(code == (most == UINT64_MAX ? TENON_OK : TENON_OUT_OF_MEMORY));
    CHECK(strict.is_right());
  }
  CHECK(a[0] == 16 && b[kFloats - 1] == 240);
  tenon_free_plan(plan);
  tenon_close_device(device);
  CHECK(strict.is_right());
}

TEST(nothing_is_left_in_the_queue_of_a_device_that_refuses_a_copy) {
  const Strict strict;
  const TemporaryFile file(program().bytes());
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
  const TemporaryFile file(program().bytes());
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
  const auto library = TargetLibrary::open(strict.path);
  CHECK(library == TargetLibrary::open(strict.path));
  const auto handle = library->allocate(kBytes, 0);
  const auto place_of = [&](const void*) { return Place{handle, 0}; };
  auto one = library->queue(0, place_of), other = library->queue(0, place_of);
  const auto launch = [&](Queue& queue, int64_t floats) {
    char place = 0;
    void* const pointers[] = {&place, &place, &place};
    const size_t nbytes[] = {kBytes, kBytes, kBytes};
    queue.launch({.pointers = pointers, .nbytes = nbytes, .numbers = std::span(&floats, 1)});
  };
  const auto fails = [](Queue& queue) {
    const auto ticket = queue.commit();
    ticket->wait();
    CHECK(ticket->passed());
    return ticket->failure() != nullptr;
  };
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
  Launch with_grid{
      .pointers = pointers, .numbers = floats, .grid = runs, .group = runs, .scratch = 16};
  one->launch(with_grid);
  CHECK(!fails(*one));
  with_grid.group = others;
  CHECK_RAISES("one group of all its floats", one->launch(with_grid));
  one = nullptr;
  CHECK(!fails(*other));
  library->release(handle, 0);
  CHECK(strict.is_right());
}
