// The numbers of random ops, on the host: those that generated kernels make, bit for bit
// (targets/c_family/templates/random.h, which both are compiled with).
#pragma once

#include <cstdint>

#include "device/generator.h"

namespace tenon {

// A kind of number, in the type that computes it.
//   Words      32 random bits, in [0, 2^32)
//   Bits       64 random bits
//   Unit       in [0, 1), 24 or 53 bits
//   Normal     of mean 0 and deviation 1
//   Exponential  of rate 1; 0 is possible, in float32
//   Cauchy     of median 0 and scale 1
struct Words {
  using type = int64_t;
};
struct Bits {
  using type = int64_t;
};
template <class T>
struct Unit {
  using type = T;
};
template <class T>
struct Normal {
  using type = T;
};
template <class T>
struct Exponential {
  using type = T;
};
template <class T>
struct Cauchy {
  using type = T;
};

// Elements first to first + count - 1 of a stream. There is one for each kind, of float and double.
template <class Kind>
void fill_random(
    typename Kind::type* out, const RandomStream& stream, int64_t first, int64_t count);

// Of 64 random bits, a number in [0, count); count is unsigned.
int64_t random_below(int64_t bits, int64_t count);

float random_exp(float x);
double random_exp(double x);

}  // namespace tenon
