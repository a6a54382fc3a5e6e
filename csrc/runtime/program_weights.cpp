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
constexpr uint64_t kPlaces[] = {
    kPlace, 2 * kPlace, 3 * kPlace, 4 * kPlace, 5 * kPlace, 6 * kPlace, 7 * kPlace, 8 * kPlace};

// Of as many words as whole vectors have: gives their number.
template <class Words>
[[gnu::always_inline]] inline size_t sum_by(const char* bytes, size_t count, uint64_t* found) {
  constexpr size_t kWords = sizeof(Words) / sizeof(uint64_t);
  Words sums{}, places;
  std::memcpy(&places, kPlaces, sizeof(places));
  size_t k = 0;
  for (; k + kWords <= count; k += kWords) {
    Words words;
    std::memcpy(&words, bytes + k * sizeof(uint64_t), sizeof(words));
    add_to(sums, words, places);
    places += kWords * kPlace;
  }
  std::memcpy(found, &sums, sizeof(sums));
  return k;
}

using Words4 [[gnu::vector_size(32)]] = uint64_t;
using Words8 [[gnu::vector_size(64)]] = uint64_t;

[[gnu::target("avx2")]] size_t sum_by_avx2(const char* bytes, size_t count, uint64_t* found) {
  return sum_by<Words4>(bytes, count, found);
}

// It multiplies such words by one instruction: four times as fast, so that memory sets the pace.
[[gnu::target("avx512f,avx512dq")]] size_t sum_by_avx512(
    const char* bytes, size_t count, uint64_t* found) {
  return sum_by<Words8>(bytes, count, found);
}
#endif

}  // namespace

uint64_t block_checksum(std::string_view bytes) {
  const auto count = bytes.size() / sizeof(uint64_t), rest = bytes.size() % sizeof(uint64_t);
  uint64_t found = 0;
  size_t done = 0;
#ifdef __x86_64__
  uint64_t sums[8] = {};
  const auto& here = Processor::here();
  if (here.has("avx512dq"))
    done = sum_by_avx512(bytes.data(), count, sums);
  else if (here.has("avx2"))
    done = sum_by_avx2(bytes.data(), count, sums);
  for (const auto one : sums)
    found += one;
#endif
  found += sum(bytes.data() + done * sizeof(uint64_t), count - done, done);
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
