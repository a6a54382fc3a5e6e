#include "ops/random_numbers.h"

#include "torch_tenon/targets/c_family/templates/random.h"

// The same loops for several processors; which one runs is found out at the first call.
#if defined(__x86_64__) && defined(__clang__)
#define FOR_AVX2 __attribute__((target("avx2")))
#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#elif defined(__x86_64__) && defined(__GNUC__)
#define FOR_AVX2 __attribute__((target("avx2")))
#define FOR_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#else
#define FOR_AVX2
#define FOR_AVX512
#endif

namespace tenon {
namespace {

enum class Processor { any, avx2, avx512 };

Processor this_processor() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Processor::avx512;
  if (__builtin_cpu_supports("avx2"))
    return Processor::avx2;
#endif
  return Processor::any;
}

#define FILL(NAME, WHERE, LOOPS, T)                                                     \
  WHERE void NAME(T* out, int64_t seed, int64_t offset, int64_t first, int64_t count) { \
    LOOPS(out, seed, offset, first, count);                                             \
  }
#define FILL_RANDOM(KIND, LOOPS, T)                                                           \
  FILL(LOOPS##_any, , LOOPS, T)                                                               \
  FILL(LOOPS##_avx2, FOR_AVX2, LOOPS, T)                                                      \
  FILL(LOOPS##_avx512, FOR_AVX512, LOOPS, T)                                                  \
  }                                                                                           \
  template <>                                                                                 \
  void fill_random<KIND>(T * out, const RandomStream& stream, int64_t first, int64_t count) { \
    static const auto processor = this_processor();                                           \
    const auto fill = processor == Processor::avx512 ? LOOPS##_avx512                         \
                      : processor == Processor::avx2 ? LOOPS##_avx2                           \
                                                     : LOOPS##_any;                           \
    const auto seed = static_cast<int64_t>(stream.seed);                                      \
    fill(out, seed, static_cast<int64_t>(stream.offset), first, count);                       \
  }                                                                                           \
  namespace {

FILL_RANDOM(Words, random_word_fill_i64, int64_t)
FILL_RANDOM(Bits, random_bits_fill_i64, int64_t)
FILL_RANDOM(Unit<float>, random_unit_fill_f32, float)
FILL_RANDOM(Unit<double>, random_unit_fill_f64, double)
FILL_RANDOM(Normal<float>, random_normal_fill_f32, float)
FILL_RANDOM(Normal<double>, random_normal_fill_f64, double)
FILL_RANDOM(Exponential<float>, random_exponential_fill_f32, float)
FILL_RANDOM(Exponential<double>, random_exponential_fill_f64, double)
FILL_RANDOM(Cauchy<float>, random_cauchy_fill_f32, float)
FILL_RANDOM(Cauchy<double>, random_cauchy_fill_f64, double)

}  // namespace

int64_t random_below(int64_t bits, int64_t count) {
  return random_below_i64(bits, count);
}

float random_exp(float x) {
  return random_exp_f32(x);
}

double random_exp(double x) {
  return random_exp_f64(x);
}

}  // namespace tenon
