// Products of any size as instructions, with copies behind computation.
//
// A product is cut into tiles that the accumulator holds, and each tile along K into chunks. While
// the array works on a chunk in one half of the scratchpad, the next one is loaded into the other.
// Within a chunk a block of the result gets all its steps one after the other, so that after the
// last chunk it is stored while the array is at the next block.
#pragma once

#include <functional>

#include "machine.h"

namespace gemmini {

constexpr int64_t kDeepest = 8; // blocks of a chunk along K

inline int64_t up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

template <typename In, typename Sum>
struct Product {
  const In *a, *b;
  Sum* c;
  Matrix left, right;
  int64_t m, n, k, step; // `step` is between rows of c
  int64_t high_ = 1, wide_ = 1, deep_ = 1; // blocks of a tile, and of a chunk along K

  void run(Machine<In, Sum>& machine) {
    plan();
    std::vector<Chunk> chunks;
    for (int64_t i = 0; i < up(m, kSide); i += high_)
      for (int64_t j = 0; j < up(n, kSide); j += wide_)
        for (int64_t at = 0; at < up(k, kSide); at += deep_)
          chunks.push_back(chunk(i, j, at, (chunks.size() % 2) * Machine<In, Sum>::kBlocks / 2));
    for (const auto& load : loads(chunks[0], machine))
      load();
    for (size_t now = 0; now < chunks.size(); ++now) {
      std::vector<std::function<void()>> next;
      if (now + 1 < chunks.size())
        next = loads(chunks[now + 1], machine);
      const Chunk& x = chunks[now];
      size_t issued = 0;
      int64_t block = 0;
      const int64_t blocks = x.high * x.wide;
      for (int64_t j = 0; j < x.wide; ++j)
        for (int64_t i = 0; i < x.high; ++i) {
          const size_t due = next.size() * ++block / blocks;
          for (; issued < due; ++issued)
            next[issued]();
          compute(x, i, j, machine);
        }
    }
  }

  struct Chunk {
    int64_t i, j, at, high, wide, deep, place; // in blocks
    int64_t left(int64_t row, int64_t step) const { return place + row * deep + step; }
    int64_t right(int64_t step, int64_t column) const {
      return place + high * deep + column * deep + step;
    }
  };

  // The tile that moves the fewest numbers, and chunks that half of the scratchpad holds.
  void plan() {
    const int64_t rows = up(m, kSide), columns = up(n, kSide), steps = up(k, kSide);
    int64_t best = INT64_MAX;
    for (int64_t h = 1; h <= std::min(rows, Machine<In, Sum>::kSums); ++h) {
      const int64_t w = std::min(columns, Machine<In, Sum>::kSums / h);
      const int64_t down = up(rows, h), across = up(columns, w);
      const int64_t moved = rows * across + columns * down;
      if (moved < best) {
        best = moved;
        high_ = up(rows, down);
        wide_ = up(columns, across);
      }
    }
    const int64_t room = Machine<In, Sum>::kBlocks / 2 / (high_ + wide_);
    deep_ = up(steps, up(steps, std::min(room, kDeepest)));
  }

  Chunk chunk(int64_t i, int64_t j, int64_t at, int64_t place) const {
    return {i, j, at, std::min(high_, up(m, kSide) - i), std::min(wide_, up(n, kSide) - j),
            std::min(deep_, up(k, kSide) - at), place};
  }

  // In the order in which the array needs them: the first columns of B, then A, then the rest.
  std::vector<std::function<void()>> loads(const Chunk& x, Machine<In, Sum>& machine) const {
    std::vector<std::function<void()>> found;
    const int64_t from = x.at * kSide, depth = std::min(x.deep * kSide, k - from);
    auto columns = [&, x](int64_t j) {
      for (int64_t s = 0; s < x.deep; ++s)
        found.push_back([=, this, &machine] {
          const int64_t first = (x.j + j) * kSide;
          const int64_t width = std::min({kWide, (x.wide - j) * kSide, n - first});
          machine.mvin(b, right, from + s * kSide, std::min(kSide, depth - s * kSide), first,
                       width, x.right(s, j), x.deep);
        });
    };
    columns(0);
    for (int64_t i = 0; i < x.high; ++i)
      for (int64_t s = 0; s < x.deep; s += kWide / kSide)
        found.push_back([=, this, &machine] {
          const int64_t top = (x.i + i) * kSide;
          machine.mvin(a, left, top, std::min(kSide, m - top), from + s * kSide,
                       std::min(kWide, depth - s * kSide), x.left(i, s), 1);
        });
    for (int64_t j = kWide / kSide; j < x.wide; j += kWide / kSide)
      columns(j);
    return found;
  }

  void compute(const Chunk& x, int64_t i, int64_t j, Machine<In, Sum>& machine) const {
    const int64_t sum = i * wide_ + j;
    for (int64_t s = 0; s < x.deep; ++s) {
      machine.preload(x.right(s, j));
      machine.compute(x.left(i, s), sum, x.at + s > 0);
    }
    if (x.at + x.deep < up(k, kSide))
      return;
    const int64_t top = (x.i + i) * kSide, first = (x.j + j) * kSide;
    machine.mvout(c + top * step + first, step, sum, std::min(kSide, m - top),
                  std::min(kSide, n - first));
  }
};

}  // namespace gemmini
