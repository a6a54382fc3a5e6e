// The device's random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC11), a function of a key and a counter and nothing else. The n-th random op of a
// generator has the key `seed` and the counters `(k, n)`. Its element `i` is made of the block of
// one `k` (ops/random_numbers.h). So any element can be had on any device, in any order, by any
// kernel.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstdint>
#include <optional>

namespace tenon {

using PhiloxWords = std::array<uint32_t, 4>;

// The stream of random numbers that one op gets.
struct RandomStream {
  uint64_t seed;
  uint64_t offset;
  PhiloxWords operator()(uint64_t index) const {
    at::philox_engine words(seed, /*subsequence=*/offset, /*offset=*/index);
    return {words(), words(), words(), words()};
  }
};

// What stands for a device's generator while a graph is captured: a replay has the generator's own
// numbers, as far from where it begins as these are from `first`.
struct CapturedRandom {
  const RandomStream first;
  RandomStream next = first;
};

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device);

  uint64_t seed() override;  // seeds from the system's source of randomness
  uint64_t current_seed() const override {
    return stream().seed;
  }
  void set_current_seed(uint64_t seed) override;
  // Offset: random ops run since the seed was set.
  uint64_t get_offset() const override {
    return stream().offset;
  }
  void set_offset(uint64_t offset) override;
  // The state is 16 bytes on the host: seed and offset, little-endian.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // That of the next op; the ops after it have the next offsets.
  RandomStream take(uint64_t ops);

  static c10::DeviceType device_type() {
    return c10::DeviceType::PrivateUse1;
  }

 private:
  GeneratorImpl* clone_impl() const override;
  // Of the graph that the thread captures; nullptr: it captures none with this generator.
  CapturedRandom* captured() const;
  const RandomStream& stream() const;
  void set(const RandomStream& stream);

  RandomStream stream_{c10::default_rng_seed_val, 0};  // of the next op
};

const at::Generator& default_generator(c10::DeviceIndex device);
// Once there is a target: forks take their locks.
void take_generators_at_fork();

// Raises when a generator of tenon is given for a tensor of another device type.
void check_generator(c10::Device tensor, const std::optional<at::Generator>& generator);

// Takes the numbers for one op from `generator`, or from the device's own where there is none; or
// for as many ops, the first of which has what is returned, and each other one the next offset.
// Raises for a generator of another device type.
RandomStream draw(
    const std::optional<at::Generator>& generator, c10::DeviceIndex device, uint64_t ops = 1);
// A generator of the host, seeded by an op's numbers: for kernels that draw from such a one.
at::Generator host_generator(const RandomStream& stream);

// Of the graph that the calling thread captures on the device's current stream; nullptr: it
// captures none. The recorder answers (record/graph.cpp).
CapturedRandom* captured_random(c10::DeviceIndex device);

}  // namespace tenon
