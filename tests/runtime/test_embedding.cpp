// What a program calls that embeds the runtime: include/tenon.h.

#include <unistd.h>

#include <cstring>
#include <thread>

#include "check.h"
#include "plans.h"
#include "programs.h"
#include "runtime/archive.h"
#include "tenon.h"

using namespace tenon;
using tests::Draft;

namespace {

// The file that this program is, which lies in its folder.
std::string path_of_this() {
  char path[4096] = {};
  CHECK(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0);
  return path;
}

// A shared object with the kernel.
struct Kernels {
  std::string folder, name = "libkernels.so";
  uint64_t sum = 0;
  Kernels() {
    const auto path = path_of_this();
    folder = path.substr(0, path.rfind('/'));
    sum = checksum(*read_whole(folder + "/" + name));
  }
};

Draft plus_one(const Kernels& kernels) {
  using Kind = Slot::Kind;
  Draft draft;
  draft.slots = {{Kind::input, 0, 32}, {Kind::output, 32}};
  draft.inputs = {0};
  draft.outputs = {1};
  draft.kernels = {{kernels.name, "add_one", kernels.sum}};
  draft.steps.push_back({tests::Kernel{0, {0, 1}, {8}, {{-1}}}, {1}, {0}});
  return draft;
}

struct Device {
  tenon_device* device = nullptr;
  Device() {
    tenon_status status{};
    CHECK(tenon_open_device(nullptr, 0, &device, &status) == TENON_OK);
  }
  ~Device() {
    tenon_close_device(device);
  }
};

// What reading a plan says; empty where it is read.
std::string refusal(const std::string& bytes, const std::string& folder, int32_t code) {
  const Device device;
  tenon_plan* plan = nullptr;
  tenon_status status{};
  const auto found =
      tenon_read_plan(device.device, bytes.data(), bytes.size(), folder.c_str(), &plan, &status);
  if (found == TENON_OK) {
    tenon_free_plan(plan);
    return {};
  }
  CHECK(found == code && status.code == code);
  return status.text;
}

}  // namespace

TEST(a_program_runs_a_plan) {
  const Kernels kernels;
  const Device device;
  const auto bytes = plus_one(kernels).bytes();
  tenon_plan* plan = nullptr;
  tenon_status status{};
  CHECK(
      tenon_read_plan(
          device.device, bytes.data(), bytes.size(), kernels.folder.c_str(), &plan, &status) ==
      TENON_OK);
  CHECK(tenon_input_count(plan) == 1 && tenon_output_count(plan) == 1);
  CHECK(tenon_input_bytes(plan, 0) == 32 && tenon_output_bytes(plan, 0) == 32);
  CHECK(tenon_input_bytes(plan, 1) == 0 && tenon_output_bytes(plan, 1) == 0);
  const auto work = [&] {
    alignas(64) float x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, result[8];
    const void* inputs[] = {x};
    void* outputs[] = {result};
    for (int k = 0; k < 100; ++k) {
      tenon_status status{};
      CHECK(tenon_run_plan(plan, inputs, outputs, &status) == TENON_OK);
      CHECK(result[0] == 1 && result[7] == 8);
    }
    x[3] = -1;
    tenon_status failed{};
    CHECK(tenon_run_plan(plan, inputs, outputs, &failed) == TENON_OUT_OF_RANGE);
    CHECK(std::strstr(failed.text, "index 7 is out of bounds") != nullptr);
  };
  std::thread other(work);
  work();
  other.join();
  alignas(64) float memory[24] = {};
  const void* inputs[] = {memory};
  for (const size_t shift : {0, 7, 8}) {
    void* outputs[] = {memory + shift};
    const auto code = tenon_run_plan(plan, inputs, outputs, &status);
    CHECK(code == (shift < 8 ? TENON_ERROR : TENON_OK));
    CHECK(shift == 8 || std::strstr(status.text, "output 0 overlaps an input") != nullptr);
  }
  tenon_free_plan(plan);
}

TEST(what_cannot_run_is_refused_with_a_reason) {
  const Kernels kernels;
  const auto good = plus_one(kernels).bytes();
  CHECK(refusal(good, kernels.folder, 0).empty());
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(refusal("", kernels.folder, TENON_DAMAGED), "ends early"));
  CHECK(has(refusal(good + '\0' + "x", kernels.folder, TENON_DAMAGED), "more behind"));
  CHECK(has(refusal(good, "/nowhere", TENON_ERROR), "no file of kernels"));
  auto other = plus_one(kernels);
  other.kernels[0].checksum ^= 1;
  CHECK(has(refusal(other.bytes(), kernels.folder, TENON_DAMAGED), "another file"));
  other = plus_one(kernels);
  other.kernels[0].symbol = "nothing";
  CHECK(has(refusal(other.bytes(), kernels.folder, TENON_DAMAGED), "has no nothing"));
  other = plus_one(kernels);
  other.slots.push_back({Slot::Kind::external, 0, 32});
  other.steps.push_back({tests::Call{"aten::sort\n", {tests::floats(0, 8)}, {}}, {}, {0}});
  other.steps[0].released = {};
  CHECK(has(refusal(other.bytes(), kernels.folder, TENON_UNSUPPORTED), "aten::sort"));
  other = plus_one(kernels);
  other.numbers = {
      {SizedNumber::Where::kernel, 0, 0, {}, 0, SizeExpression::of(SizeExpression::constant, 8)}};
  CHECK(has(refusal(other.bytes(), kernels.folder, TENON_UNSUPPORTED), "any sizes"));
}

TEST(null_is_no_plan_and_no_argument) {
  CHECK(tenon_input_count(nullptr) == 0 && tenon_output_count(nullptr) == 0);
  CHECK(tenon_input_bytes(nullptr, 0) == 0 && tenon_output_bytes(nullptr, 0) == 0);
  tenon_free_plan(nullptr);
  tenon_close_device(nullptr);
  const Kernels kernels;
  const Device device;
  const auto bytes = plus_one(kernels).bytes();
  const auto size = bytes.size();
  const auto* folder = kernels.folder.c_str();
  tenon_plan* plan = nullptr;
  tenon_status status{};
  CHECK(tenon_read_plan(device.device, bytes.data(), size, folder, &plan, &status) == TENON_OK);
  alignas(64) float memory[8] = {};
  const void* inputs[] = {nullptr};
  void* outputs[] = {memory};
  const auto lacks = [&](const char* name, int32_t code) {
    CHECK(code == TENON_ERROR && std::strstr(status.text, name) != nullptr);
    CHECK(std::strstr(status.text, "is null") != nullptr);
    status = {};
  };
  lacks("'found'", tenon_open_device(nullptr, 0, nullptr, &status));
  lacks("'device'", tenon_read_plan(nullptr, bytes.data(), size, folder, &plan, &status));
  lacks("'bytes'", tenon_read_plan(device.device, nullptr, size, folder, &plan, &status));
  lacks("'folder'", tenon_read_plan(device.device, bytes.data(), size, nullptr, &plan, &status));
  lacks("'found'", tenon_read_plan(device.device, bytes.data(), size, folder, nullptr, &status));
  lacks("'plan'", tenon_run_plan(nullptr, inputs, outputs, &status));
  lacks("'inputs'", tenon_run_plan(plan, nullptr, outputs, &status));
  lacks("'outputs'", tenon_run_plan(plan, inputs, nullptr, &status));
  lacks("input 0", tenon_run_plan(plan, inputs, outputs, &status));
  inputs[0] = memory;
  outputs[0] = nullptr;
  lacks("output 0", tenon_run_plan(plan, inputs, outputs, &status));
  tenon_free_plan(plan);
}

TEST(a_file_of_kernels_may_be_replaced_while_it_is_in_use) {
  Kernels kernels;
  const tests::TemporaryFile file(*read_whole(kernels.folder + "/" + kernels.name), kernels.name);
  const Device device;
  tenon_plan *first = nullptr, *second = nullptr;
  tenon_status status{};
  auto draft = plus_one(kernels);
  const auto read = [&](tenon_plan*& plan) {
    const auto bytes = draft.bytes();
    return tenon_read_plan(
        device.device, bytes.data(), bytes.size(), file.folder.c_str(), &plan, &status);
  };
  CHECK(read(first) == TENON_OK);
  const auto others = *read_whole(kernels.folder + "/libprogram_kernels.so");
  CHECK(write_whole(file.path, others));
  draft.kernels[0].symbol = "scale";
  CHECK(read(second) == TENON_DAMAGED);
  draft.kernels[0].checksum = checksum(others);
  CHECK(read(second) == TENON_OK);
  tenon_free_plan(first);
  tenon_free_plan(second);
}

TEST(the_text_of_an_error_ends_with_a_whole_character) {
  tenon_program* program = nullptr;
  for (const size_t before : {0, 1, 2}) {
    auto path = "/" + std::string(before, 'x');
    for (int k = 0; k < 600; ++k)
      path += "\u4e2d";
    tenon_status status{};
    CHECK(tenon_open_program(path.c_str(), nullptr, &program, &status) == TENON_ERROR);
    const auto length = std::strlen(status.text);
    CHECK(length > 1000 && std::string(status.text, length).substr(length - 3) == "\u4e2d");
  }
}

TEST(libraries_that_are_no_target_say_why) {
  tenon_device* device = nullptr;
  tenon_status status{};
  CHECK(tenon_open_device("/nowhere.so", 0, &device, &status) == TENON_ERROR);
  CHECK(std::strstr(status.text, "/nowhere.so") != nullptr);
  const Kernels kernels;
  const auto path = kernels.folder + "/" + kernels.name;
  CHECK(tenon_open_device(path.c_str(), 0, &device, &status) == TENON_ERROR);
  CHECK(std::strstr(status.text, "does not export 'tenon_target'") != nullptr);
  CHECK(tenon_open_device(nullptr, 1, &device, &status) == TENON_OUT_OF_RANGE);
  CHECK(tenon_open_device(nullptr, 1, &device, nullptr) == TENON_OUT_OF_RANGE);
  CHECK(tenon_version() / 1000 == TENON_INTERFACE);
}
