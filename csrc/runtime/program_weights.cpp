// The checksums of weights.

#include <algorithm>
#include <atomic>

#include "runtime/processor.h"
#include "runtime/program_file.h"
#include "runtime/threads.h"

namespace tenon {
namespace {

// docs/program-file.md has it in NumPy. Each word counts by itself, so a processor with vectors
// takes several at once.
[[gnu::always_inline]] inline uint64_t sum_of_words(const char* bytes, size_t count) {
  uint64_t sum = 0, place = 0;
  for (size_t k = 0; k < count; ++k) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + k * sizeof(word), sizeof(word));
    place += 0x9E3779B97F4A7C15ull;
    word ^= place;
    word = (word ^ word >> 32) * 0xD6E8FEB86659FD93ull;
    sum += word ^ word >> 29;
  }
  return sum;
}

#if defined(__GNUC__) && !defined(__clang__)
#define TENON_VECTORISED gnu::optimize("O3")
#else
#define TENON_VECTORISED gnu::noinline
#endif

#ifdef __x86_64__
[[TENON_VECTORISED, gnu::target("avx2")]] uint64_t sum_by_avx2(const char* bytes, size_t count) {
  return sum_of_words(bytes, count);
}
#endif
[[TENON_VECTORISED]] uint64_t sum(const char* bytes, size_t count) {
  return sum_of_words(bytes, count);
}

}  // namespace

uint64_t block_checksum(std::string_view bytes) {
  const auto count = bytes.size() / sizeof(uint64_t), rest = bytes.size() % sizeof(uint64_t);
#ifdef __x86_64__
  static const bool has_avx2 = Processor::here().has("avx2");
  auto found = (has_avx2 ? sum_by_avx2 : sum)(bytes.data(), count);
#else
  auto found = sum(bytes.data(), count);
#endif
  if (rest > 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + bytes.size() - rest, rest);
    word ^= (count + 1) * 0x9E3779B97F4A7C15ull;
    word = (word ^ word >> 32) * 0xD6E8FEB86659FD93ull;
    found += word ^ word >> 29;
  }
  return found + bytes.size();
}

void ProgramFile::check_weights(ThreadPool& pool) const {
  struct Blocks {
    const ProgramFile& file;
    std::atomic<size_t> next{0}, damaged;
  } blocks{*this, 0, block_checks_.size()};
  const auto work = [](void* data) {
    auto& [file, next, damaged] = *static_cast<Blocks*>(data);
    const auto nbytes = static_cast<size_t>(file.block_bytes_);
    for (size_t k; (k = next++) < file.block_checks_.size();) {
      if (block_checksum(file.weights_.substr(k * nbytes, nbytes)) != file.block_checks_[k])
        damaged = k;
    }
  };
  pool.parallel(work, &blocks, 0);
  const size_t damaged = blocks.damaged;
  check_data(
      damaged == block_checks_.size(),
      "{} is damaged, or of another program: its weights have changed near byte {}",
      (weight_file_ ? weight_file_->path() : path()),
      weights_begin_ + static_cast<int64_t>(damaged) * block_bytes_);
}

}  // namespace tenon
