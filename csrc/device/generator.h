// The device's random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC11), a function of a key and a counter and nothing else. Element `i` of the n-th
// random op of a generator has the key `seed` and the counter `(i, n)`, so any element can be had
// on any device, in any order, by any kernel.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstdint>
#include <optional>

namespace tenon {

using PhiloxWords = std::array<uint32_t, 4>;

inline PhiloxWords philox(uint64_t key, uint64_t index, uint64_t offset) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  PhiloxWords c = {
      static_cast<uint32_t>(index),
      static_cast<uint32_t>(index >> 32),
      static_cast<uint32_t>(offset),
      static_cast<uint32_t>(offset >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c[0], p1 = kMultiplier1 * c[2];
    c = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0,
        static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
        static_cast<uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

// The stream of random numbers that one op gets.
struct RandomStream {
  uint64_t seed;
  uint64_t offset;
  PhiloxWords operator()(uint64_t index) const {
    return philox(seed, index, offset);
  }
};

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;  // resets the offset as well
  uint64_t current_seed() const override;
  uint64_t seed() override;                   // seeds from the system's source of randomness
  void set_offset(uint64_t offset) override;  // offset: random ops run since the seed was set
  uint64_t get_offset() const override;
  // The state is 16 bytes on the host: seed and offset, little-endian.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  RandomStream next();

  static c10::DeviceType device_type();

 private:
  GeneratorImpl* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);

// Raises when a generator of tenon is given for a tensor of another device type.
void check_generator(c10::Device tensor, const std::optional<at::Generator>& generator);

// Takes the numbers for one op from `generator`, or from the device's own where there is none.
// Raises for a generator of another device type.
RandomStream draw(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

}  // namespace tenon
