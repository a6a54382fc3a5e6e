// Products of matrices by whichever way is fastest on this machine for their shape, dtype and
// layout: PyTorch's own kernel, oneDNN, or the compiler's generated one. The ways are timed once
// (torch_tenon/targets/cpu/autotune.py) and found in a table from then on. With deterministic
// algorithms it is always PyTorch's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../templates/matmul.h"
#include "execute/plan.h"

namespace tenon {

enum class MatmulRoute : int64_t { kPyTorch, kOneDnn, kGenerated };

// What a choice depends on: batch, m, n, k, dtype, layouts, threads, whether there is an epilogue.
using MatmulKey = std::array<int64_t, 8>;

struct MatmulChoice {
  MatmulKey key;
  MatmulRoute route;
};

// Runs a way a number of times on the operands at hand; gives the seconds of one run.
using MatmulTrial = std::function<double(MatmulRoute, int64_t)>;

// Chooses for a key that is not in the table, and is asked once for each.
using MatmulTuner = std::function<MatmulRoute(const MatmulKey&, const MatmulTrial&)>;

// Choices that are kept; beyond them the one goes that was used least recently.
constexpr size_t kMostMatmulChoices = 4096;

struct MatmulChoices {
  int64_t kept = 0;
  int64_t found = 0;  // look-ups that found one
  int64_t asked = 0;  // look-ups that asked the tuner
  int64_t evicted = 0;
};
MatmulChoices matmul_choices();

// Forgets all choices. Without a tuner everything goes to PyTorch's kernel.
void set_matmul_tuner(MatmulTuner tuner);

// From now on products choose their way as if they ran on so many threads, on however many they do;
// 0: on those that they do.
void set_threads_of_choices(int64_t threads);
// The generated driver, compiled from torch_tenon/targets/cpu/templates/matmul.c, and what its code
// lies in, which stays.
void set_matmul_driver(void (*driver)(const tenon_matmul_t*), std::shared_ptr<KernelOwner> owner);

bool has_matmul_driver();

// Enters choices that another process made; those made here stay.
void adopt_matmul_choices(const std::vector<MatmulChoice>& choices);
// From now on what this thread uses is noted; null: no longer.
void note_matmul_choices(std::vector<MatmulChoice>* noted);

// What generated kernels call: multiplies, then runs the epilogue over the product. The product's
// field `threads` is filled in here.
void multiply(const tenon_matmul_t* product);

// One given way.
void multiply_by(MatmulRoute route, const tenon_matmul_t& product);

}  // namespace tenon
