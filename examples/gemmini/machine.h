// The machine: memories, units, and the cycle at which each instruction runs.
//
// An instruction's values are computed when it is issued, in the program's order. Its time follows
// from its unit and from the rows that it touches, as the hardware's scoreboard would have it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

namespace gemmini {

constexpr int64_t kSide = 16;              // processing elements along a side of the array
constexpr int64_t kScratchpad = 256 << 10; // bytes
constexpr int64_t kAccumulator = 64 << 10; // bytes, in rows of 16 numbers of 4 bytes
constexpr int64_t kBus = 16;               // bytes a cycle of the DMA, each way
constexpr int64_t kLatency = 40;           // cycles from a DMA's last beat until its data is usable
constexpr int64_t kDrain = 2 * kSide;      // cycles in which a result leaves the array
constexpr int64_t kWide = 4 * kSide;       // most columns that one mvin moves

// What was counted since the machine was reset; gemmini.py reads it.
struct Counters {
  int64_t cycles = 0;      // of products, from the first instruction's issue to the last one's end
  int64_t load = 0;        // busy cycles of each unit
  int64_t execute = 0;
  int64_t store = 0;
  int64_t multiplications = 0; // that the products consist of, without padding
  int64_t products = 0;
  int64_t host = 0;        // of loops on the host core
  int64_t calls = 0;       // of PyTorch's kernels on the host core, whose cycles nobody counts
};

// When the rows of a memory were last written and read.
struct Rows {
  std::vector<int64_t> written, read;
  explicit Rows(int64_t count) : written(count), read(count) {}

  int64_t readable(int64_t first, int64_t count) const {
    return *std::max_element(written.begin() + first, written.begin() + first + count);
  }
  int64_t writable(int64_t first, int64_t count) const {
    const auto latest = std::max_element(read.begin() + first, read.begin() + first + count);
    return std::max(*latest, readable(first, count));
  }
  void set(std::vector<int64_t>& times, int64_t first, int64_t count, int64_t cycle) {
    for (int64_t k = first; k < first + count; ++k)
      times[k] = std::max(times[k], cycle);
  }
};

// A unit runs its instructions in order. Its station holds few of them: the next one is not issued
// before the oldest has ended.
struct Unit {
  size_t entries;
  int64_t free = 0, busy = 0;
  std::deque<int64_t> station;

  int64_t issue(int64_t now) {
    if (station.size() < entries)
      return now;
    now = std::max(now, station.front());
    station.pop_front();
    return now;
  }
  void run(int64_t start, int64_t cycles, int64_t end) {
    free = start + cycles;
    busy += cycles;
    station.push_back(end);
  }
};

// Where the elements of a matrix lie: at the sum of their row's and their column's offset.
struct Matrix {
  std::vector<int64_t> rows, columns;

  // Beats of the bus that a box takes. The DMA moves runs of neighbours, along rows or columns.
  int64_t beats(int64_t top, int64_t height, int64_t left, int64_t width, int64_t bytes) const {
    return std::min(
        height * runs(columns, left, width, bytes), width * runs(rows, top, height, bytes));
  }

 private:
  static int64_t runs(const std::vector<int64_t>& at, int64_t from, int64_t count, int64_t bytes) {
    int64_t beats = 0, length = 0;
    for (int64_t k = from; k < from + count; ++k) {
      ++length;
      if (k + 1 == from + count || at[k + 1] != at[k] + 1) {
        beats += (length * bytes + kBus - 1) / kBus;
        length = 0;
      }
    }
    return beats;
  }
};

// `In` are the numbers of the scratchpad, `Sum` those of the accumulator.
template <typename In, typename Sum>
class Machine {
 public:
  // Blocks of 16 rows that the memories hold.
  static constexpr int64_t kBlocks = kScratchpad / (kSide * kSide * sizeof(In));
  static constexpr int64_t kSums = kAccumulator / (kSide * kSide * sizeof(Sum));

  // Moves a box to the scratchpad: block `to`, and the next ones for each further 16 columns that
  // are `step` blocks apart. What is beyond the box is zero.
  void mvin(const In* from, const Matrix& where, int64_t top, int64_t height, int64_t left,
            int64_t width, int64_t to, int64_t step) {
    int64_t start = std::max(issue(load_), load_.free);
    for (int64_t c = 0; c < width; c += kSide) {
      const int64_t block = to + c / kSide * step;
      start = std::max(start, spad_rows_.writable(block * kSide, kSide));
      In* row = &spad_[block * kSide * kSide];
      const int64_t columns = std::min(kSide, width - c);
      std::fill(row, row + kSide * kSide, In());
      for (int64_t r = 0; r < height; ++r)
        for (int64_t k = 0; k < columns; ++k)
          row[r * kSide + k] = from[where.rows[top + r] + where.columns[left + c + k]];
    }
    const int64_t cycles = where.beats(top, height, left, width, sizeof(In));
    const int64_t end = start + cycles + kLatency;
    for (int64_t c = 0; c < width; c += kSide)
      spad_rows_.set(spad_rows_.written, (to + c / kSide * step) * kSide, kSide, end);
    load_.run(start, cycles, end);
  }

  // Takes 16 x 16 weights into the array, behind those in use. They are read while the product
  // before runs.
  void preload(int64_t block) {
    weights_ = block;
    const int64_t issued = issue(execute_);
    const int64_t start =
        std::max({issued, loaded_, started_, spad_rows_.readable(block * kSide, kSide)});
    loaded_ = start + kSide;
    spad_rows_.set(spad_rows_.read, block * kSide, kSide, loaded_);
    execute_.station.push_back(loaded_);
  }

  // Multiplies 16 rows with the weights, into the accumulator or onto what is there.
  void compute(int64_t block, int64_t sum, bool accumulate) {
    const int64_t issued = issue(execute_);
    int64_t start = std::max(
        {issued, execute_.free, loaded_, spad_rows_.readable(block * kSide, kSide)});
    // Sums of the array come in order, so only another unit's use of them is waited for.
    const auto& read = sum_rows_.read;
    start = std::max(start, read[sum * kSide] - kDrain);
    started_ = start;
    spad_rows_.set(spad_rows_.read, block * kSide, kSide, start + kSide);
    sum_rows_.set(sum_rows_.written, sum * kSide, kSide, start + kSide + kDrain);
    execute_.run(start, kSide, start + kSide + kDrain);

    const In *a = &spad_[block * kSide * kSide], *b = &spad_[weights_ * kSide * kSide];
    Sum* out = &sums_[sum * kSide * kSide];
    for (int64_t i = 0; i < kSide; ++i) {
      Sum row[kSide] = {};
      for (int64_t k = 0; k < kSide; ++k)
        for (int64_t j = 0; j < kSide; ++j)
          row[j] += Sum(a[i * kSide + k]) * Sum(b[k * kSide + j]);
      for (int64_t j = 0; j < kSide; ++j)
        out[i * kSide + j] = accumulate ? out[i * kSide + j] + row[j] : row[j];
    }
  }

  // Moves sums to memory, whose rows are `step` numbers apart.
  void mvout(Sum* to, int64_t step, int64_t sum, int64_t height, int64_t width) {
    const int64_t start =
        std::max({issue(store_), store_.free, sum_rows_.readable(sum * kSide, kSide)});
    const int64_t beats = (width * int64_t(sizeof(Sum)) + kBus - 1) / kBus;
    const int64_t end = start + height * beats;
    sum_rows_.set(sum_rows_.read, sum * kSide, kSide, end);
    store_.run(start, end - start, end + kLatency);
    for (int64_t i = 0; i < height; ++i)
      std::memcpy(to + i * step, &sums_[sum * kSide * kSide + i * kSide], width * sizeof(Sum));
    last_ = std::max(last_, end + kLatency);
  }

  void count(Counters& counters) const {
    counters.cycles += last_;
    counters.load += load_.busy;
    counters.execute += execute_.busy;
    counters.store += store_.busy;
  }

 private:
  // Instructions come in order, one a cycle, each when its unit's station has room for it.
  int64_t issue(Unit& unit) {
    return issued_ = unit.issue(issued_ + 1);
  }

  std::vector<In> spad_ = std::vector<In>(kBlocks * kSide * kSide);
  std::vector<Sum> sums_ = std::vector<Sum>(kSums * kSide * kSide);
  Rows spad_rows_{kBlocks * kSide}, sum_rows_{kSums * kSide};
  Unit load_{8}, execute_{16}, store_{4}; // by the entries of their stations
  int64_t issued_ = 0, loaded_ = 0, started_ = 0, weights_ = 0, last_ = 0;
};

}  // namespace gemmini
