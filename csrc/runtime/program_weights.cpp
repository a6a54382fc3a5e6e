// The checksums of weights.

#include <algorithm>
#include <atomic>

#include "runtime/processor.h"
#include "runtime/program_file.h"
#include "runtime/threads.h"

namespace tenon {
namespace {

// docs/program-file.md has it in NumPy. Each word counts by itself and by its place, so a processor
// that multiplies vectors of them takes several at once.
constexpr uint64_t kPlace = 0x9E3779B97F4A7C15ull, kFactor = 0xD6E8FEB86659FD93ull;

template <class Words>
[[gnu::always_inline]] inline void add_to(Words& sums, Words& words, const Words& places) {
  words ^= places;
  words = (words ^ words >> 32) * kFactor;
  sums += words ^ words >> 29;
}

// `before`: how many words there are before these.
uint64_t sum(const char* bytes, size_t count, size_t before = 0) {
  uint64_t sum = 0;
  for (size_t k = 0; k < count; ++k) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + k * sizeof(word), sizeof(word));
    add_to(sum, word, (before + k + 1) * kPlace);
  }
  return sum;
}

#ifdef __x86_64__
[[gnu::target("avx2")]] uint64_t sum_by_avx2(const char* bytes, size_t count) {
  using Words [[gnu::vector_size(32)]] = uint64_t;
  constexpr size_t kWords = sizeof(Words) / sizeof(uint64_t);
  Words sums{}, places{kPlace, 2 * kPlace, 3 * kPlace, 4 * kPlace};
  size_t k = 0;
  for (; k + kWords <= count; k += kWords) {
    Words words;
    std::memcpy(&words, bytes + k * sizeof(uint64_t), sizeof(words));
    add_to(sums, words, places);
    places += kWords * kPlace;
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sum(bytes + k * sizeof(uint64_t), count - k, k);
}
#endif

}  // namespace

uint64_t block_checksum(std::string_view bytes) {
  const auto count = bytes.size() / sizeof(uint64_t), rest = bytes.size() % sizeof(uint64_t);
#ifdef __x86_64__
  static const bool has_avx2 = Processor::here().has("avx2");
  auto found = has_avx2 ? sum_by_avx2(bytes.data(), count) : sum(bytes.data(), count);
#else
  auto found = sum(bytes.data(), count);
#endif
  if (rest > 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + bytes.size() - rest, rest);
    add_to(found, word, (count + 1) * kPlace);
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
