/* Random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11)
 * and what is made of its words. Generated kernels read this file and the core is compiled with it, so
 * that both make the same bits: there are additions, products, quotients and roots alone, each rounded
 * once (-ffp-contract=off), and no function of a library.
 *
 * The key of a block of four 32-bit words is the seed, its counter a number and the offset. Blocks come
 * in groups of RANDOM_LANES, one in each lane of a vector: the group's first elements are made of the
 * lanes' first words, in the order of the lanes, the next ones of their second words, and so on. A
 * number of 64 bits takes two words; normal numbers come in pairs, of two words or of four. */
#ifndef __OPENCL_VERSION__ /* which has its own of these, and vectors without being told */
#include <stdint.h>
#include <string.h>
#define RANDOM_SIMD _Pragma("omp simd")
#else
#define RANDOM_SIMD
#endif

#define RANDOM_INLINE static inline __attribute__((always_inline))
#define RANDOM_LANES 16

/* One of ten rounds over the words c0 to c3, with the key of round `k`. All is written out with plain
 * variables: compilers make vectors of a loop over lanes only if there is no loop inside, and those of
 * C++ only if there is no structure. */
#define RANDOM_ROUND(k)                                                                            \
  {                                                                                                \
    uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;                       \
    c0 = (uint32_t)(b >> 32) ^ c1 ^ (low_key + k * 0x9E3779B9u), c1 = (uint32_t)b;                 \
    c2 = (uint32_t)(a >> 32) ^ c3 ^ (high_key + k * 0xBB67AE85u), c3 = (uint32_t)a;                \
  }
/* Declares c0 to c3, the block with the counter (low, high, offset) under the key `seed`. */
#define RANDOM_BLOCK(seed, offset, low, high)                                                      \
  uint32_t low_key = (uint32_t)(seed), high_key = (uint32_t)((seed) >> 32);                        \
  uint32_t c0 = low, c1 = high, c2 = (uint32_t)(offset), c3 = (uint32_t)((offset) >> 32);          \
  RANDOM_ROUND(0u) RANDOM_ROUND(1u) RANDOM_ROUND(2u) RANDOM_ROUND(3u) RANDOM_ROUND(4u)             \
  RANDOM_ROUND(5u) RANDOM_ROUND(6u) RANDOM_ROUND(7u) RANDOM_ROUND(8u) RANDOM_ROUND(9u)

/* The words of a block as parameters, and as arguments; `part` says which element of it is meant. */
#define RANDOM_WORDS uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3
RANDOM_INLINE uint64_t random_joined(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }
/* Chosen by masks: a compiler that sees choices moves what follows into them. */
RANDOM_INLINE uint32_t random_half(RANDOM_WORDS, int part) {
  uint32_t odd = 0u - (uint32_t)(part & 1), late = 0u - (uint32_t)(part >> 1);
  uint32_t early = (c0 & ~odd) | (c1 & odd), other = (c2 & ~odd) | (c3 & odd);
  return (early & ~late) | (other & late);
}
RANDOM_INLINE uint64_t random_whole(RANDOM_WORDS, int part) {
  uint32_t late = 0u - (uint32_t)part;
  return random_joined((c0 & ~late) | (c2 & late), (c1 & ~late) | (c3 & late));
}

#ifdef __OPENCL_VERSION__
#define random_f32(u) as_float(u)
#define random_u32(x) as_uint(x)
#define random_f64(u) as_double(u)
#define random_u64(x) as_ulong(x)
#else
RANDOM_INLINE float random_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
RANDOM_INLINE uint32_t random_u32(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
RANDOM_INLINE double random_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }
RANDOM_INLINE uint64_t random_u64(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
#endif
/* Below 2^52; from 64-bit integers to floats many processors have no vectors. */
RANDOM_INLINE double random_whole_number(uint64_t n) { return random_f64(n | 0x4330000000000000u) - 0x1p52; }

/* In [0, 1): 24 bits, 53 bits. */
RANDOM_INLINE float random_fraction_f32(uint32_t bits) { return (float)(int32_t)(bits >> 8) * 0x1p-24f; }
RANDOM_INLINE double random_fraction_f64(uint64_t bits) {
  double high = random_whole_number(bits >> 43), low = random_whole_number(bits >> 11 & 0xffffffffu);
  return high * 0x1p-21 + low * 0x1p-53;
}
/* In (0, 1], of float64 in (0, 1): for logarithms. */
RANDOM_INLINE float random_positive_f32(uint32_t bits) {
  return ((float)(int32_t)(bits >> 1) + 0.5f) * 0x1p-31f;
}
RANDOM_INLINE double random_positive_f64(uint64_t bits) {
  return random_f64(bits >> 12 | 0x3ff0000000000000u) - (1.0 - 0x1p-53);
}

/* -log(x) of a normal x, by the logarithm of a number in [sqrt(1/2), sqrt(2)); the polynomials here
 * and in the sine are Cephes' (Moshier) for float32 and fdlibm's for float64. */
RANDOM_INLINE float random_minus_log_f32(float x) {
  uint32_t u = random_u32(x) - 0x3f3504f3u;
  float e = (float)((int32_t)u >> 23), f = random_f32((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f, z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  float y = f * z * p - e * 2.12194440e-4f - 0.5f * z;
  return -(f + y + e * 0.693359375f);
}
RANDOM_INLINE double random_minus_log_f64(double x) {
  uint64_t u = random_u64(x) - 0x3fe6a09e667f3bcdu;
  /* The exponent is made positive before it is shifted: of signed shifts there are no vectors. */
  double e = random_whole_number((u + 0x4000000000000000u) >> 52) - 1024.0;
  double f = random_f64((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
  double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  double p = 1.479819860511658591e-01;
  p = p * z + 1.531383769920937332e-01;
  p = p * z + 1.818357216161805012e-01;
  p = p * z + 2.222219843214978396e-01;
  p = p * z + 2.857142874366239149e-01;
  p = p * z + 3.999999999940941908e-01;
  p = p * z + 6.666666666666735130e-01;
  double y = half - (s * (half + z * p) + e * 1.90821492927058770002e-10);
  return -(e * 6.93147180369123816490e-01 - (y - f));
}

/* Cosine and sine of so many 2^-32 of a turn, of so many 2^-64: by the nearest quarter of it. */
RANDOM_INLINE float random_wave_f32(uint32_t angle, int sine) {
  uint32_t quarter = (angle + 0x20000000u) >> 30;
  float x = (float)(int32_t)(angle - (quarter << 30)) * 0x1.921fb6p-30f, z = x * x;
  float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
  float c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z;
  c = c - 0.5f * z + 1.0f;
  uint32_t turned = quarter + (sine ? 0u : 1u);
  float y = turned & 1 ? c : s;
  return random_f32(random_u32(y) ^ (turned & 2) << 30);
}
RANDOM_INLINE double random_wave_f64(uint64_t angle, int sine) {
  uint64_t quarter = ((angle >> 61) + 1) >> 1;
  double turns = random_f64(angle >> 12 | 0x3ff0000000000000u) - 1.0;
  double x = (turns - 0.25 * random_whole_number(quarter)) * 6.283185307179586, z = x * x;
  double s = 1.58969099521155010221e-10;
  s = s * z - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  s = s * z * x + x;
  double c = -1.13596475577881948265e-11;
  c = c * z + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  c = c * z * z - 0.5 * z + 1.0;
  uint64_t turned = quarter + (sine ? 0u : 1u);
  double y = turned & 1 ? c : s;
  return random_f64(random_u64(y) ^ (turned & 2) << 62);
}

/* What an element is of its block: the distributions without their parameters. */
RANDOM_INLINE int64_t random_word_of_i64(RANDOM_WORDS, int part) { return (int64_t)random_half(c0, c1, c2, c3, part); }
RANDOM_INLINE int64_t random_bits_of_i64(RANDOM_WORDS, int part) { return (int64_t)random_whole(c0, c1, c2, c3, part); }
RANDOM_INLINE float random_unit_of_f32(RANDOM_WORDS, int part) {
  return random_fraction_f32(random_half(c0, c1, c2, c3, part));
}
RANDOM_INLINE double random_unit_of_f64(RANDOM_WORDS, int part) {
  return random_fraction_f64(random_whole(c0, c1, c2, c3, part));
}
/* Box and Muller, 1958: a radius and an angle are two numbers. */
RANDOM_INLINE float random_normal_of_f32(RANDOM_WORDS, int part) {
  uint32_t radius = part < 2 ? c0 : c2, angle = part < 2 ? c1 : c3;
  float square = 2.0f * random_minus_log_f32(random_positive_f32(radius));
  return __builtin_sqrtf(square) * random_wave_f32(angle, part & 1);
}
RANDOM_INLINE double random_normal_of_f64(RANDOM_WORDS, int part) {
  double square = 2.0 * random_minus_log_f64(random_positive_f64(random_joined(c0, c1)));
  return __builtin_sqrt(square) * random_wave_f64(random_joined(c2, c3), part);
}
RANDOM_INLINE float random_exponential_of_f32(RANDOM_WORDS, int part) {
  return random_minus_log_f32(random_positive_f32(random_half(c0, c1, c2, c3, part)));
}
RANDOM_INLINE double random_exponential_of_f64(RANDOM_WORDS, int part) {
  return random_minus_log_f64(random_positive_f64(random_whole(c0, c1, c2, c3, part)));
}
/* The cotangent of half a turn's part, which is never 0. */
RANDOM_INLINE float random_cauchy_of_f32(RANDOM_WORDS, int part) {
  uint32_t angle = random_half(c0, c1, c2, c3, part) >> 1 | 1u;
  return random_wave_f32(angle, 0) / random_wave_f32(angle, 1);
}
RANDOM_INLINE double random_cauchy_of_f64(RANDOM_WORDS, int part) {
  uint64_t angle = random_whole(c0, c1, c2, c3, part) >> 1 | 0x1000u;
  return random_wave_f64(angle, 0) / random_wave_f64(angle, 1);
}

/* Element `element` of the numbers under (seed, offset), and `count` of them from `first` on. `PARTS`
 * are the elements of a block. */
#define RANDOM(KIND, S, T, PARTS)                                                                  \
  RANDOM_INLINE T random_##KIND##_##S(int64_t seed, int64_t offset, int64_t element) {             \
    uint64_t e = (uint64_t)element, lane = e % RANDOM_LANES, key = (uint64_t)seed;                 \
    uint64_t number = e / (RANDOM_LANES * PARTS) * RANDOM_LANES + lane, op = (uint64_t)offset;     \
    RANDOM_BLOCK(key, op, (uint32_t)number, (uint32_t)(number >> 32))                              \
    return random_##KIND##_of_##S(c0, c1, c2, c3, (int)(e / RANDOM_LANES % PARTS));                \
  }                                                                                                \
  RANDOM_INLINE void random_##KIND##_group_##S(T *out, uint64_t seed, uint64_t offset,             \
                                               uint64_t group) {                                   \
    uint64_t number = group * RANDOM_LANES;                                                        \
    uint32_t low = (uint32_t)number, high = (uint32_t)(number >> 32);                              \
    RANDOM_SIMD for (uint32_t lane = 0; lane < RANDOM_LANES; ++lane) {                             \
      RANDOM_BLOCK(seed, offset, low + lane, high)                                                 \
      out[lane] = random_##KIND##_of_##S(c0, c1, c2, c3, 0);                                       \
      out[lane + RANDOM_LANES] = random_##KIND##_of_##S(c0, c1, c2, c3, 1);                        \
      if (PARTS == 4) {                                                                            \
        out[lane + RANDOM_LANES * (PARTS - 2)] = random_##KIND##_of_##S(c0, c1, c2, c3, PARTS - 2); \
        out[lane + RANDOM_LANES * (PARTS - 1)] = random_##KIND##_of_##S(c0, c1, c2, c3, PARTS - 1); \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  RANDOM_INLINE void random_##KIND##_fill_##S(T *out, int64_t seed, int64_t offset, int64_t first, \
                                              int64_t count) {                                     \
    const uint64_t size = RANDOM_LANES * PARTS;                                                    \
    for (uint64_t e = (uint64_t)first, end = e + (uint64_t)count; e < end;) {                      \
      uint64_t skip = e % size, n = size - skip < end - e ? size - skip : end - e;                 \
      T made[RANDOM_LANES * PARTS];                                                                \
      random_##KIND##_group_##S(made, (uint64_t)seed, (uint64_t)offset, e / size);                 \
      if (n == size)                                                                               \
        memcpy(out, made, sizeof(made));                                                           \
      else                                                                                         \
        memcpy(out, made + skip, n * sizeof(T));                                                   \
      out += n, e += n;                                                                            \
    }                                                                                              \
  }
RANDOM(word, i64, int64_t, 4)
RANDOM(bits, i64, int64_t, 2)
RANDOM(unit, f32, float, 4)
RANDOM(unit, f64, double, 2)
RANDOM(normal, f32, float, 4)
RANDOM(normal, f64, double, 2)
RANDOM(exponential, f32, float, 4)
RANDOM(exponential, f64, double, 2)
RANDOM(cauchy, f32, float, 4)
RANDOM(cauchy, f64, double, 2)

/* Of 64 bits and a number of values the one that they fall to, without a quotient. */
#ifdef __OPENCL_VERSION__
#define random_below_i64(bits, count) ((int64_t)mul_hi((uint64_t)(bits), (uint64_t)(count)))
#else
RANDOM_INLINE int64_t random_below_i64(int64_t bits, int64_t count) {
  return (int64_t)((unsigned __int128)(uint64_t)bits * (uint64_t)count >> 64);
}
#endif

/* exp(x), within 2 ULP: for what is log-normal. Powers of two are made in two factors, so that
 * subnormal results are rounded once. */
RANDOM_INLINE float random_exp_f32(float x) {
  float c = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  float t = c * 0x1.715476p+0f + 0x1.8p23f, n = t - 0x1.8p23f;
  int32_t k = (int32_t)random_u32(t) - 0x4b400000, half = k >> 1;
  float r = c - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  float low = random_f32((uint32_t)(half + 127) << 23), high = random_f32((uint32_t)(k - half + 127) << 23);
  return x != x ? x : p * low * high;
}
RANDOM_INLINE double random_exp_f64(double x) {
  double c = x < -746.0 ? -746.0 : x > 710.0 ? 710.0 : x;
  double t = c * 0x1.71547652b82fep+0 + 0x1.8p52, n = t - 0x1.8p52;
  int64_t k = (int64_t)(random_u64(t) - 0x4338000000000000u), half = k >> 1;
  double r = c - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  double low = random_f64((uint64_t)(half + 1023) << 52), high = random_f64((uint64_t)(k - half + 1023) << 52);
  return x != x ? x : p * low * high;
}
