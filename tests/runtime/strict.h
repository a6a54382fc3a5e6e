// The target of strict.c, which says what its caller does wrong, and a program for it.
#pragma once

#include <dlfcn.h>

#include <array>

#include "check.h"
#include "programs.h"
#include "runtime/target_library.h"
#include "tenon.h"

namespace tests {

inline const std::string kStrict = folder_of_this() + "libstrict.so";

// The target of strict.c, which is opened once.
struct Strict {
  const std::string path;
  void* const library = dlopen(path.c_str(), RTLD_NOW);
  explicit Strict(std::string path = kStrict) : path(std::move(path)) {}
  ~Strict() {
    memory(UINT64_MAX);
    copies(-1);
    late(false);
    yields(true);
    refuse_recordings(0);
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
  // Has a ticket pass when it is waited for.
  void late(bool is) const {
    find<void(int)>("strict_late")(is);
  }
  void yields(bool does) const {
    find<void(int)>("strict_yields")(does);
  }
  void refuse_commits(int count) const {
    find<void(int)>("strict_refuse_commits")(count);
  }
  void fail_commits(int count) const {
    find<void(int)>("strict_fail_commits")(count);
  }
  // 1: their begin, 2: their third kernel, 3: their end; 0: none.
  void refuse_recordings(int step) const {
    find<void(int)>("strict_refuse_recordings")(step);
  }
  int recordings() const {
    return find<int()>("strict_recordings")();
  }
  int replays() const {
    return find<int()>("strict_replays")();
  }
  bool is_right() const {
    const char* wrong = find<const char*()>("strict_wrong")();
    if (wrong != nullptr)
      failed(__FILE__, __LINE__, wrong);
    return find<size_t()>("strict_enqueued")() == 0;
  }
};

inline constexpr size_t kFloats = 256, kBytes = kFloats * sizeof(float), kBlock = 4096;

// Outputs are (x * x)^2 and (x * x)^2 * c * w: by a block of two pages, and then one of four.
inline Draft powers() {
  using Kind = tenon::Slot::Kind;
  Draft draft;
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

inline ProgramDraft strict_program() {
  using tenon::DType;
  using From = tenon::Source::Kind;
  ProgramDraft draft;
  draft.target = "strict";
  draft.weights = {{"v", std::vector<float>(kFloats, 2)}, {"w", std::vector<float>(kFloats, 5)}};
  draft.states = {{"s", {kFloats}, -1}, {"t", {kFloats}, 0}};
  draft.codes = {{"source", "multiply"}};
  const std::vector<SizeExpression> sizes{constant(kFloats)};
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
  OpenedOnDevice(const Strict& strict, const std::string& path, bool commit_each = false) {
    tenon_options options{sizeof(options), strict.path.c_str()};
    options.commit_each = commit_each;
    tenon_status status{};
    code = tenon_open_program(path.c_str(), &options, &program, &status);
  }
  ~OpenedOnDevice() {
    tenon_close_program(program);
  }
  int32_t run(float value, size_t method = 0) const {
    std::vector<float> x(kFloats, value), a(kFloats), b(kFloats);
    const auto tensor_of = [](std::vector<float>& memory) {
      return tenon_tensor{sizeof(tenon_tensor), memory.data(), kBytes, TENON_FLOAT32, 1, {kFloats}};
    };
    const auto input = tensor_of(x);
    std::array outputs{tensor_of(a), tensor_of(b)};
    tenon_status status{};
    const auto found = tenon_run(program, method, &input, 1, outputs.data(), 2, &status);
    const auto power = value * value * value * value;
    for (size_t k = 0; found == TENON_OK && k < kFloats; ++k)
      CHECK(a[k] == power && b[k] == power * (method == 0 ? 15 : 6));
    return found;
  }
};

// Two queues of the device, over a block that each pointer is the start of.
struct TwoQueues {
  const std::shared_ptr<tenon::TargetLibrary> library;
  const uintptr_t handle = library->allocate(kBytes, 0);
  std::unique_ptr<tenon::Queue> one = make(), other = make();
  std::shared_ptr<tenon::TargetLibrary::Kernel> kernel;

  explicit TwoQueues(const Strict& strict) : library(tenon::TargetLibrary::open(strict.path)) {}
  ~TwoQueues() {
    one = nullptr;
    other = nullptr;
    library->release(handle, 0);
  }
  std::unique_ptr<tenon::Queue> make() const {
    return library->queue(0, [handle = handle](const void*) { return tenon::Place{handle, 0}; });
  }
  // The device fails in one of a negative number.
  void launch(tenon::Queue& queue, int64_t floats) const {
    char place = 0;
    void* const pointers[] = {&place, &place, &place};
    const size_t nbytes[] = {kBytes, kBytes, kBytes};
    const auto number = kernel != nullptr ? kernel->address() : 0;
    queue.launch(
        {.kernel = reinterpret_cast<tenon::KernelFunction>(number),
         .pointers = pointers,
         .nbytes = nbytes,
         .numbers = std::span(&floats, 1)});
  }
};

inline bool fails(const tenon::Ticket& ticket) {
  ticket->wait();
  CHECK(ticket->passed());
  return ticket->failure() != nullptr;
}

}  // namespace tests
