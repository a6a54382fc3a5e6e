// Damaged program files: each changed byte is found, and no bytes are a crash.

#include <random>

#include "check.h"
#include "programs.h"
#include "runtime/archive.h"
#include "runtime/program.h"

using namespace tenon;
using tests::with_checksum;

namespace {

ProgramOptions options_for(const std::string& bytes) {
  ProgramOptions options;
  options.bytes = bytes;
  options.threads = 1;
  return options;
}

bool is_refused(const std::string& bytes) {
  return !tests::error_of([&] { Program("changed", options_for(bytes)); }).empty();
}

// Without kernels' code, which is most of the bytes.
std::string small_program() {
  auto draft = tests::sorting_program();
  draft.weights = {{"w", {1, 2, 3, 4}}};
  draft.states = {{"s", {4}, 0}};
  draft.methods[0].outputs.push_back({"w", DType{6}, {tests::constant(4)}});
  draft.methods[0].copies = {{2, {Source::Kind::weight, 0}}};
  return draft.bytes();
}

// As a reader without vectors computes it: docs/program-file.md has the same in NumPy.
uint64_t block_checksum_by_words(const std::string& bytes) {
  auto sum = static_cast<uint64_t>(bytes.size());
  for (size_t k = 0; k * 8 < bytes.size(); ++k) {
    uint64_t word = 0;
    for (size_t j = 0; j < 8 && k * 8 + j < bytes.size(); ++j)
      word |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[k * 8 + j])) << 8 * j;
    word ^= (k + 1) * 0x9E3779B97F4A7C15ull;
    word ^= word >> 32;
    word *= 0xD6E8FEB86659FD93ull;
    sum += word ^ word >> 29;
  }
  return sum;
}

}  // namespace

TEST(a_block_s_checksum_is_the_documented_one) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 300; ++size) {
    std::string bytes(size, '\0');
    for (auto& byte : bytes)
      byte = static_cast<char>(random());
    CHECK(block_checksum(bytes) == block_checksum_by_words(bytes));
  }
  // What docs/program-file.md computes in NumPy.
  CHECK(block_checksum("the weights of a program") == 0xa41e7b015ab77645ull);
}

TEST(each_changed_byte_of_a_program_is_found) {
  const auto whole = small_program();
  CHECK(!is_refused(whole));
  uint64_t length = 0;
  std::memcpy(&length, whole.data() + 16, sizeof(length));
  for (size_t k = 0; k < whole.size(); ++k) {
    // All values where something is said, some in the zeros before the weights.
    const int step = k < 32 + length ? 1 : 85;
    for (int change = 1; change < 256; change += step) {
      auto changed = whole;
      changed[k] = static_cast<char>(changed[k] ^ change);
      CHECK(is_refused(changed));
    }
  }
}

TEST(each_changed_byte_of_code_is_found) {
  const auto whole = tests::example_program().bytes();
  for (size_t k = 0; k < whole.size(); ++k) {
    auto changed = whole;
    changed[k] = static_cast<char>(changed[k] ^ (1 + k % 255));
    CHECK(is_refused(changed));
  }
}

TEST(a_file_that_was_cut_is_refused) {
  const auto whole = small_program();
  for (size_t k = 0; k < whole.size(); ++k) {
    CHECK(is_refused(whole.substr(0, k)));
  }
  CHECK(is_refused(whole + '\0'));
}

// With a right checksum a head may say anything: it is refused, or as sound as the first one.
TEST(heads_that_say_anything_are_no_crash) {
  std::mt19937 random(1);
  for (const bool is_small : {true, false}) {
    const auto whole = is_small ? small_program() : tests::example_program().bytes();
    uint64_t length = 0;
    std::memcpy(&length, whole.data() + 16, sizeof(length));
    for (int k = 0; k < (is_small ? 5000 : 300); ++k) {
      auto changed = whole;
      for (auto times = 1 + random() % 3; times > 0; --times)
        changed[32 + random() % length] = static_cast<char>(random());
      changed = with_checksum(changed);
      try {
        Program program("changed", options_for(changed));
        const std::vector<int64_t> sizes{8, 4};
        for (size_t method = 0; method < program.file().methods.size(); ++method) {
          const GivenTensor input{DType{6}, sizes};
          (void)tests::error_of([&] { program.plan(method, {&input, 1}); });
        }
      } catch (const Error&) {
      } catch (const std::bad_alloc&) {
      }
    }
  }
}

// With a folder, writes these for who changes them for longer (tests/runtime/fuzz/program.cpp).
TEST(programs_for_the_fuzzer) {
  if (tests::argument == nullptr)
    return;
  int count = 0;
  auto sized = tests::example_program();
  sized.codes.clear();
  for (auto& method : sized.methods) {
    for (auto& step : method.plan.steps)
      step.work = tests::Call{"aten::sort\n", {tests::floats(0, 4)}, {}};
    method.plan.kernels = {};
    method.plan.numbers = {};
  }
  for (const auto& bytes : {small_program(), sized.bytes()})
    CHECK(write_whole(text_of("{}/{}", tests::argument, count++), bytes));
}
