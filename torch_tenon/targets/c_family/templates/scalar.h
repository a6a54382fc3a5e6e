/* Scalar arithmetic for generated kernels, with PyTorch's results. Everything is branch-free where
 * it matters, so that the compiler turns a call inside a `#pragma omp simd` loop into vector code.
 * float32 functions are within 4 ULP over the whole range (tests/compiler/test_scalar_math.py).
 *
 * What a language calls otherwise than C is in its target's names.h, which stands before this file. */

/* 16-bit floats, in 32 bits up to the last step: gcc has no vectors for some loops that go to 16 bits
 * and back, or choose between integers by a comparison of floats. */
INLINE float from_bf16(uint16_t h) { return bits_f32((uint32_t)h << 16); }
/* x rounded to a bfloat16, whose bits are the upper half of the result; the lower one is anything */
INLINE uint32_t bf16_on_top(float x) {
  uint32_t u = bits_u32(x);
  return (int32_t)(u & 0x7fffffffu) > 0x7f800000 ? 0x7fc00000u : u + 0x7fffu + ((u >> 16) & 1u);
}
INLINE uint16_t to_bf16(float x) { return (uint16_t)(bf16_on_top(x) >> 16); }
INLINE uint16_t cut_bf16(float x) { return (uint16_t)(bits_u32(x) >> 16); }
INLINE float round_bf16_f32(float x) { return bits_f32(bf16_on_top(x) & 0xffff0000u); }
INLINE float round_plain_bf16_f32(float x) {
  uint32_t u = bits_u32(x);
  return bits_f32((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}
/* Of float16 too everything is done in the upper half: otherwise gcc takes each operand to 16 bits,
 * or from there, which is dearer than the rest. */
INLINE float from_f16(uint16_t h) {
  uint32_t u = (uint32_t)h << 16;
  int32_t a = (int32_t)(u & 0x7fffffffu) >> 3;
  /* Subnormals come out right because the product is exact in float32. */
  uint32_t scaled = bits_u32(bits_f32((uint32_t)a) * 0x1p112f);
  return bits_f32(scaled | (a >= 0x0f800000 ? 0x7f800000u : 0u) | (u & 0x80000000u));
}
/* Beside a power of 2 whose last bit is a float16's, addition rounds to that, and leaves what follows
 * the exponent at the bottom. Its carry goes into the exponent, at the end into infinity. */
INLINE uint16_t to_f16(float x) {
  uint32_t u = bits_u32(x);
  int32_t a = (int32_t)(u & 0x7fffffffu);
  int32_t most = a < 0x47800000 ? a : 0x47800000, exponent = most & 0x7f800000;
  int32_t least = exponent > 0x38800000 ? exponent : 0x38800000, power = least + 0x06800000;
  uint32_t rounded = bits_u32(bits_f32((uint32_t)most) + bits_f32((uint32_t)power)) - (uint32_t)power;
  uint32_t nan = a > 0x7f800000 ? 0x2000000u : 0u;
  rounded = (rounded + (uint32_t)((least - 0x38800000) >> 13)) << 16;
  return (uint16_t)((rounded | nan | (u & 0x80000000u)) >> 16);
}
/* Beside a power of 2 that has no bits below a float16's last one, addition rounds to that. */
INLINE float round_f16_f32(float x) {
  uint32_t u = bits_u32(x), a = u & 0x7fffffffu;
  int32_t exponent = (int32_t)(a & 0x7f800000u);
  float power = bits_f32((uint32_t)(exponent > 0x38800000 ? exponent : 0x38800000) + 0x06800000u);
  uint32_t near = bits_u32((bits_f32(a) + power) - power);
  uint32_t far = (int32_t)a > 0x7f800000 ? a : 0x7f800000u; /* infinity, or the NaN */
  return bits_f32(((int32_t)a >= 0x477ff000 ? far : near) | (u & 0x80000000u));
}

/* Integers: Python's division, and what the hardware traps on. There are no vectors for a division
 * but those of floats, which are exact here: a quotient is an integer or at least 1 / y away from one,
 * and float32 of 16 bits, float64 of 32, is off by less than that. */
#define INTEGER(T, S)                                                                             \
  INLINE T trunc_div_##S(T x, T y) {                                                              \
    T d = y == 0 || ((T)-1 < 0 && y == (T)-1) ? (T)1 : y;                                         \
    T q = BY_FLOATS(T, y) ? QUOTIENT(T, x, d) : (T)(x / d);                                       \
    return (T)-1 < 0 && y == (T)-1 ? (T)(0 - (uint64_t)x) : y == 0 ? (T)0 : q;                    \
  }                                                                                               \
  INLINE T fmod_##S(T x, T y) {                                                                   \
    T d = y == 0 || ((T)-1 < 0 && y == (T)-1) ? (T)1 : y;                                         \
    return BY_FLOATS(T, y) ? (T)(x - QUOTIENT(T, x, d) * d) : (T)(x % d);                         \
  }                                                                                               \
  INLINE T floor_div_##S(T x, T y) {                                                              \
    T q = trunc_div_##S(x, y), r = fmod_##S(x, y);                                                \
    return (T)(q - (T)(r != 0 && ((r < 0) != (y < 0))));                                          \
  }                                                                                               \
  INLINE T remainder_##S(T x, T y) {                                                              \
    T r = fmod_##S(x, y);                                                                         \
    return (T)(r + (r != 0 && ((r < 0) != (y < 0)) ? y : (T)0));                                  \
  }                                                                                               \
  INLINE T minimum_##S(T x, T y) { return x < y ? x : y; }                                        \
  INLINE T maximum_##S(T x, T y) { return x > y ? x : y; }                                        \
  INLINE T sign_##S(T x) { return (T)((x > 0) - (x < 0)); }                                       \
  INLINE T pow_##S(T x, T n) {                                                                    \
    uint64_t base = (uint64_t)x, result = 1, e = (uint64_t)n;                                     \
    if (n < 0) return (T)(x == 1 ? 1 : x == (T)-1 ? 1 - 2 * (n & 1) : 0);                         \
    for (; e; e >>= 1, base *= base) result *= e & 1 ? base : 1;                                  \
    return (T)result;                                                                             \
  }                                                                                               \
  INLINE T lshift_##S(T x, T y) {                                                                 \
    int in = y >= 0 && (uint64_t)y < 8 * sizeof(T);                                               \
    return in ? (T)((uint64_t)x << (in ? y : 0)) : (T)0;                                          \
  }                                                                                               \
  INLINE T rshift_##S(T x, T y) {                                                                 \
    int in = y >= 0 && (uint64_t)y < 8 * sizeof(T);                                               \
    return (T)(x >> (in ? y : (T)(8 * sizeof(T) - 1))) * (T)(in || x < 0);                        \
  }
/* The least number has no absolute value but itself, and the divisor the sign that comes of that. */
#define DIVISORS(T, S)                                                                            \
  INLINE T absolute_##S(T x) { return x < 0 ? (T)(0 - (uint64_t)x) : x; }                         \
  INLINE T gcd_##S(T x, T y) {                                                                    \
    T a = absolute_##S(x), b = absolute_##S(y);                                                   \
    while (a) {                                                                                   \
      T r = (T)(b % a);                                                                           \
      b = a, a = r;                                                                               \
    }                                                                                             \
    return b;                                                                                     \
  }                                                                                               \
  INLINE T lcm_##S(T x, T y) {                                                                    \
    T d = gcd_##S(x, y);                                                                          \
    int64_t q = trunc_div_i64(x, d), m = (int64_t)((uint64_t)q * (uint64_t)(int64_t)y);             \
    return sizeof(T) < 4 ? (T)(m < 0 ? -m : m) : absolute_##S((T)m);                               \
  }
INTEGER(int64_t, i64)
INTEGER(int32_t, i32)
INTEGER(int16_t, i16)
INTEGER(int8_t, i8)
INTEGER(uint64_t, u64)
INTEGER(uint32_t, u32)
INTEGER(uint16_t, u16)
INTEGER(uint8_t, u8)
DIVISORS(int64_t, i64)
DIVISORS(int32_t, i32)
DIVISORS(int16_t, i16)
DIVISORS(int8_t, i8)
DIVISORS(uint8_t, u8)
INLINE int64_t floor_mod_i64(int64_t x, int64_t y) { return remainder_i64(x, y); }
INLINE bool_t minimum_bool(bool_t x, bool_t y) { return x & y; }
INLINE bool_t maximum_bool(bool_t x, bool_t y) { return x | y; }

/* A float as a whole number. What has no place, and NaN, gives the least number, as the processor
 * does: a compiler has others where it sees a literal. What is whole and becomes a float again is
 * trunc(x) to gcc, which has negative zeros where integers have one: it does not see through this. */
#define SIGNED_WHOLE(x, T) ((x) > 0 ? (T)(x) : -(T)(-(x)))
#if defined(__x86_64__)
#define WHOLE(x, F, LIMIT, T, LEAST) (__builtin_fabs##F(x) < LIMIT ? SIGNED_WHOLE(x, T) : LEAST)
#else
#define WHOLE(x, F, LIMIT, T, LEAST) SIGNED_WHOLE(x, T)
#endif

/* 64-bit integers and floats. AVX2 has no instruction for a vector of them: the halves of an integer
 * become the last bits of a float64 whose exponent makes them whole numbers. */
#if defined(__AVX2__) && !defined(__AVX512DQ__)
INLINE double high_of_i64(int64_t x) { /* x less its last 32 bits */
  return bits_f64((uint64_t)x >> 32 ^ 0x4530000080000000u) - (0x1p84 + 0x1p63);
}
INLINE double f64_of_i64(int64_t x) {
  return high_of_i64(x) + (bits_f64(((uint64_t)x & 0xffffffffu) | 0x4330000000000000u) - 0x1p52);
}
/* Of a long number the last 11 bits become one that says whether they were zero: float64 has place
 * for the rest, and float32 is rounded as if from x. */
INLINE float f32_of_i64(int64_t x) {
  double high = high_of_i64(x);
  uint64_t low = (uint64_t)x & 0xffffffffu, odd = (low | ((low & 0x7ff) + 0x7ff)) & 0xfffff800u;
  low = __builtin_fabs(high) >= 0x1p52 ? odd : low;
  return (float)(high + (bits_f64(low | 0x4330000000000000u) - 0x1p52));
}
INLINE int64_t whole_i64_f64(double x) {
  double whole = __builtin_trunc(x), high = __builtin_floor(whole * 0x1p-32);
  double low = __builtin_fma(high, -0x1p32, whole);
  uint64_t top = (uint64_t)bits_i64(high + 0x1.8p52) << 32;
  uint64_t bottom = (uint64_t)bits_i64(low + 0x1p52) & 0xffffffffu;
  return __builtin_fabs(x) < 0x1p63 ? (int64_t)(top | bottom) : INT64_MIN;
}
INLINE int64_t whole_i64_f32(float x) { return whole_i64_f64((double)x); }
#else
INLINE double f64_of_i64(int64_t x) { return (double)x; }
INLINE float f32_of_i64(int64_t x) { return (float)x; }
INLINE int64_t whole_i64_f64(double x) { return WHOLE(x, , 0x1p63, int64_t, INT64_MIN); }
INLINE int64_t whole_i64_f32(float x) { return WHOLE(x, f, 0x1p63f, int64_t, INT64_MIN); }
#endif

/* fmod: each step takes away a multiple of y. In float64 a step of float32 numbers is exact and
 * leaves 2^-51 of what was there, so that six are enough for the greatest x by the least y. */
INLINE float fmod_f32(float x, float y) {
  double r = __builtin_fabs((double)x), b = __builtin_fabs((double)y);
  b = b > 0x1p128 ? 0x1p128 : b; /* infinity leaves every number as it is */
  double inverse = 1 / b;
#pragma GCC unroll 6
  for (int k = 0; k < 6; ++k) r = __builtin_fma(-__builtin_rint(r * inverse), b, r);
  r = r < 0 ? r + b : r;
  return __builtin_copysignf((float)r, x);
}
INLINE double fmod_f64(double x, double y) { return fmod(x, y); } /* of vectors: fmod.h */

/* Without an instruction for it `fma` is a function, and a long one. */
#if defined(__FP_FAST_FMA) || defined(__OPENCL_C_VERSION__)
#define MULTIPLY_ADD(x, y, z, F) __builtin_fma##F(x, y, z)
#else
#define MULTIPLY_ADD(x, y, z, F) (x * y + z)
#endif

/* Both floating types. */
#define FLOATING(T, S, F)                                                                         \
  INLINE int32_t whole_i32_##S(T x) { return WHOLE(x, F, (T)0x1p31, int32_t, INT32_MIN); }        \
  /* One instruction beside a number that is no NaN, and of two zeros x, as PyTorch's clamp. */    \
  INLINE T minimum_##S(T x, T y) {                                                                \
    T z = x < y ? x : y;                                                                          \
    return __builtin_constant_p(y) && y == y ? (y < x ? y : x) : (x != x ? x : z);                \
  }                                                                                               \
  INLINE T maximum_##S(T x, T y) {                                                                \
    T z = x > y ? x : y;                                                                          \
    return __builtin_constant_p(y) && y == y ? (y > x ? y : x) : (x != x ? x : z);                \
  }                                                                                               \
  INLINE T fmin_##S(T x, T y) { T z = x <= y ? x : y; return y != y ? x : z; }                    \
  INLINE T fmax_##S(T x, T y) { T z = x >= y ? x : y; return y != y ? x : z; }                    \
  INLINE T abs_##S(T x) { return __builtin_fabs##F(x); }                                          \
  INLINE T sign_##S(T x) { return (T)((x > 0) - (x < 0)); }                                       \
  INLINE T floor_##S(T x) { return __builtin_floor##F(x); }                                       \
  INLINE T ceil_##S(T x) { return __builtin_ceil##F(x); }                                         \
  INLINE T trunc_##S(T x) { return __builtin_trunc##F(x); }                                       \
  INLINE T round_##S(T x) { return __builtin_rint##F(x); }                                        \
  INLINE T sqrt_##S(T x) { return __builtin_sqrt##F(x); }                                         \
  INLINE T rsqrt_##S(T x) { return 1 / __builtin_sqrt##F(x); }                                    \
  INLINE T reciprocal_##S(T x) { return 1 / x; }                                                  \
  INLINE T fma_##S(T x, T y, T z) { return __builtin_fma##F(x, y, z); }                           \
  INLINE T multiply_add_##S(T x, T y, T z) { return MULTIPLY_ADD(x, y, z, F); }                   \
  INLINE T copysign_##S(T x, T y) { return __builtin_copysign##F(x, y); }                         \
  INLINE bool_t isnan_##S(T x) { return x != x; }                                                 \
  INLINE bool_t isinf_##S(T x) { return __builtin_fabs##F(x) == (T)INFINITY; }                    \
  INLINE T remainder_##S(T x, T y) {                                                              \
    T r = fmod_##S(x, y);                                                                         \
    return r != 0 && ((r < 0) != (y < 0)) ? r + y : r;                                            \
  }                                                                                               \
  INLINE T trunc_div_##S(T x, T y) { return __builtin_trunc##F(x / y); }                          \
  INLINE T sin_##S(T x) { return sin##F(x); }                                                     \
  INLINE T cos_##S(T x) { return cos##F(x); }                                                     \
  INLINE T tan_##S(T x) { return tan##F(x); }                                                     \
  INLINE T asin_##S(T x) { return asin##F(x); }                                                   \
  INLINE T acos_##S(T x) { return acos##F(x); }                                                   \
  INLINE T atan_##S(T x) { return atan##F(x); }                                                   \
  INLINE T atan2_##S(T y, T x) { return atan2##F(y, x); }                                         \
  INLINE T sinh_##S(T x) { return sinh##F(x); }                                                   \
  INLINE T cosh_##S(T x) { return cosh##F(x); }                                                   \
  INLINE T asinh_##S(T x) { return asinh##F(x); }                                                 \
  INLINE T acosh_##S(T x) { return acosh##F(x); }                                                 \
  INLINE T atanh_##S(T x) { return atanh##F(x); }
FLOATING(float, f32, f)
FLOATING(double, f64, )
/* In float64 no square of a float32 number overflows. That of a float64 number may: both are scaled.
 * What squares and sum have lost mends the root, which is then as the C library rounds it: a number is
 * compared with the largest of a tensor, wherever that was found. */
INLINE float hypot_f32(float x, float y) {
  double a = x, b = y;
  float r = (float)__builtin_sqrt(a * a + b * b);
  return __builtin_fabsf(x) == INFINITY || __builtin_fabsf(y) == INFINITY ? INFINITY : r;
}
INLINE double hypot_f64(double x, double y) {
  double a = __builtin_fabs(x), b = __builtin_fabs(y), large = a > b ? a : b, small = a > b ? b : a;
  double scale = large > 0x1p510 ? 0x1p-600 : large < 0x1p-450 ? 0x1p600 : 1;
  double back = large > 0x1p510 ? 0x1p600 : large < 0x1p-450 ? 0x1p-600 : 1;
  double p = large * scale, q = small * scale, pp = p * p, qq = q * q, sum = pp + qq;
  double lost = __builtin_fma(p, p, -pp) + __builtin_fma(q, q, -qq) + (qq - (sum - pp));
  double root = __builtin_sqrt(sum), rest = __builtin_fma(-root, root, sum) + lost;
  double r = sum == 0 ? sum : (root + rest / (2 * root)) * back;
  return a == INFINITY || b == INFINITY ? INFINITY : r;
}
/* The next number from x is the next integer, in size. */
#define NEXTAFTER(T, S, INT, I, F)                                                                \
  INLINE T nextafter_##S(T x, T y) {                                                              \
    INT step = (x < y) == (x > 0) ? 1 : -1;                                                       \
    T r = bits_##S(bits_##I(x) + step);                                                           \
    r = x == 0 ? __builtin_copysign##F(bits_##S(1), y) : r;                                       \
    r = x == y ? y : r;                                                                           \
    return x != x || y != y ? x + y : r;                                                          \
  }
NEXTAFTER(float, f32, int32_t, i32, f)
NEXTAFTER(double, f64, int64_t, i64, )
INLINE float mantissa_f32(float x) { int e; return frexpf(x, &e); }
INLINE double mantissa_f64(double x) { int e; return frexp(x, &e); }
INLINE float exponent_f32(float x) { int e; frexpf(x, &e); return isfinite(x) ? (float)e : 0; }
INLINE double exponent_f64(double x) { int e; frexp(x, &e); return isfinite(x) ? e : 0; }
INLINE bool_t signbit_f32(float x) { return bits_i32(x) < 0; }
INLINE bool_t signbit_f64(double x) { return bits_i64(x) < 0; }

/* float64: the C library's */
INLINE double exp_f64(double x) { return exp(x); }
INLINE double exp2_f64(double x) { return exp2(x); }
INLINE double expm1_f64(double x) { return expm1(x); }
INLINE double log_f64(double x) { return log(x); }
INLINE double log2_f64(double x) { return log2(x); }
INLINE double log10_f64(double x) { return log10(x); }
INLINE double log1p_f64(double x) { return log1p(x); }
INLINE double tanh_f64(double x) { return tanh(x); }
INLINE double erf_f64(double x) { return erf(x); }
INLINE double erfc_f64(double x) { return erfc(x); }
INLINE double pow_f64(double x, double y) { return pow(x, y); }
INLINE double sigmoid_f64(double x) { return 1 / (1 + exp(-x)); }

/* float32: our own where a network has many of them. Polynomials are minimax fits of the functions on
 * the reduced range. */

/* A power of two is made from the low bits of a sum with ROUND. What depends on a sign is made of
 * its bit: gcc would compute both sides of a choice. */
#define ROUND 0x1.8p23f /* x + ROUND is x rounded to an integer, in the low bits */
INLINE float power_of_2(float biased) { return bits_f32(bits_u32(biased) << 23); }
/* exp(r) - 1 for |r| <= log(2) / 2, terms in pairs so that few wait for each other */
INLINE float expm1_near_zero(float r) {
  float s = r * r;
  float low = __builtin_fmaf(1.666652113e-01f, r, 4.999999404e-01f);
  float high = __builtin_fmaf(8.368745446e-03f, r, 4.166838899e-02f);
  float p = __builtin_fmaf(__builtin_fmaf(1.381454058e-03f, s, high), s, low);
  return __builtin_fmaf(p, s, r);
}
/* x less n log(2) */
INLINE float less_log2(float x, float n) {
  return __builtin_fmaf(n, -0x1.7f7d1cp-20f, __builtin_fmaf(n, -0x1.62e4p-1f, x));
}
/* Results are made 2^64 times too large or too small, so that subnormal ones are rounded once. */
INLINE float exp_f32(float x) {
  uint32_t sign = bits_u32(x) & 0x80000000u;
  float c = x < -105.0f ? -105.0f : x, bias = bits_f32(bits_u32(ROUND + 63.0f) + (sign >> 24));
  float t = __builtin_fmaf(c, 0x1.715476p+0f, bias);
  float y = expm1_near_zero(less_log2(c, t - bias)) + 1.0f;
  y = y * power_of_2(t) * bits_f32(bits_u32(0x1p64f) - (sign >> 1));
  return x > 89.0f ? INFINITY : y;
}
/* exp(-|x|) */
INLINE float exp_below_1(float x) {
  float c = -__builtin_fabsf(x);
  c = c < -105.0f ? -105.0f : c;
  float t = __builtin_fmaf(c, 0x1.715476p+0f, ROUND + 191.0f);
  float y = expm1_near_zero(less_log2(c, t - (ROUND + 191.0f))) + 1.0f;
  return y * power_of_2(t) * 0x1p-64f;
}
INLINE float exp2_f32(float x) {
  uint32_t sign = bits_u32(x) & 0x80000000u;
  float c = x < -152.0f ? -152.0f : x, bias = bits_f32(bits_u32(ROUND + 63.0f) + (sign >> 24));
  float t = c + bias;
  float y = expm1_near_zero((c - (t - bias)) * 0x1.62e43p-1f) + 1.0f;
  y = y * power_of_2(t) * bits_f32(bits_u32(0x1p64f) - (sign >> 1));
  return x > 129.0f ? INFINITY : y;
}
/* for x in [-86, 86] */
INLINE float exp_moderate(float x) {
  float t = __builtin_fmaf(x, 0x1.715476p+0f, ROUND + 127.0f), s = power_of_2(t);
  return __builtin_fmaf(s, expm1_near_zero(less_log2(x, t - (ROUND + 127.0f))), s);
}
/* for x in [-30, 86] */
INLINE float expm1_moderate(float x) {
  float t = __builtin_fmaf(x, 0x1.715476p+0f, ROUND + 127.0f);
  float s = power_of_2(t);
  return __builtin_fmaf(s, expm1_near_zero(less_log2(x, t - (ROUND + 127.0f))), s - 1.0f);
}
/* Half of it, which never overflows before the end; beyond the bounds it is -1 or infinite. */
INLINE float expm1_f32(float x) {
  float c = x < -30.0f ? -30.0f : x;
  c = c > 89.0f ? 89.0f : c;
  float t = __builtin_fmaf(c, 0x1.715476p+0f, ROUND + 126.0f);
  float s = power_of_2(t);
  float y = __builtin_fmaf(s, expm1_near_zero(less_log2(c, t - (ROUND + 126.0f))), s - 0.5f);
  return x == 0.0f ? x : y + y;
}
/* A normal x > 0 as 2^e times a number in [sqrt(1/2), sqrt(2)): the logarithm of that */
INLINE float log_reduced(float x, float *e) {
  uint32_t u = bits_u32(x) - 0x3f3504f3u;
  *e = (float)((int32_t)u >> 23);
  float f = bits_f32((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float s = f / (2.0f + f), z = s * s;
  float p = 2.333149054e-01f;
  p = __builtin_fmaf(p, z, 2.855077933e-01f);
  p = __builtin_fmaf(p, z, 4.000012226e-01f);
  p = __builtin_fmaf(p, z, 6.666666655e-01f);
  float half = 0.5f * f * f;
  return f - (half - s * (half + z * p));
}
INLINE float log_normal(float x) {
  float e, y = log_reduced(x, &e);
  return __builtin_fmaf(e, 0x1.62e4p-1f, __builtin_fmaf(e, 0x1.7f7d1cp-20f, y));
}
/* What a logarithm of x is where x is no normal number; `y` elsewhere. No `||`: gcc would branch. */
INLINE float log_anywhere(float x, float y) {
  y = x == INFINITY ? x : y;
  y = x == 0.0f ? -INFINITY : y;
  return x >= 0.0f ? y : NAN;
}
#define LOG(NAME, HIGH, LOW, SCALE)                                                               \
  INLINE float NAME(float x) {                                                                    \
    bool_t small = x < 0x1p-126f;                                                                 \
    float e, y = log_reduced(small ? x * 0x1p24f : x, &e);                                        \
    e = small ? e - 24.0f : e;                                                                    \
    return log_anywhere(x, __builtin_fmaf(e, HIGH, __builtin_fmaf(e, LOW, (SCALE) * y)));         \
  }
LOG(log_f32, 0x1.62e4p-1f, 0x1.7f7d1cp-20f, 1.0f)
LOG(log2_f32, 1.0f, 0.0f, 0x1.715476p+0f)
LOG(log10_f32, 0x1.344p-2f, 0x1.3509f8p-18f, 0x1.bcb7b2p-2f)
INLINE float log1p_f32(float x) {
  float u = 1.0f + x;
  float c = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  float y = log_f32(u) + c / u;
  y = u == 0.0f ? -INFINITY : y;
  y = x == INFINITY ? x : y;
  return x == 0.0f ? x : y;
}
/* log2(x) in float64 for positive x: enough bits for pow */
INLINE double log2_wide(float x) {
  float scaled = x < 0x1p-126f ? x * 0x1p24f : x;
  uint32_t u = bits_u32(scaled) - 0x3f3504f3u;
  int32_t k = (int32_t)u >> 23;
  double m = (double)bits_f32((u & 0x7fffffu) + 0x3f3504f3u);
  double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 0x1.715476p+1 / 17.0;
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1 / 15.0);
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1 / 13.0);
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1 / 11.0);
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1 / 9.0);
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1 / 7.0);
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1 / 5.0);
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1 / 3.0);
  p = __builtin_fma(p, z, 0x1.71547652b82fep+1);
  return __builtin_fma(p, s, (double)(x < 0x1p-126f ? k - 24 : k));
}
INLINE float pow_f32(float x, float y) {
  double t = (double)y * log2_wide(__builtin_fabsf(x));
  t = t > 160.0 ? 160.0 : t;
  t = t < -160.0 ? -160.0 : t;
  double n = __builtin_rint(t), r = t - n;
  double p = 1.01511899677552077e-07;
  p = __builtin_fma(p, r, 1.32594276518932488e-06);
  p = __builtin_fma(p, r, 1.52529800337265935e-05);
  p = __builtin_fma(p, r, 1.54034348339386059e-04);
  p = __builtin_fma(p, r, 1.33335576266340079e-03);
  p = __builtin_fma(p, r, 9.61812919226491536e-03);
  p = __builtin_fma(p, r, 5.55041086686244162e-02);
  p = __builtin_fma(p, r, 2.40226506956484814e-01);
  p = __builtin_fma(p, r, 6.93147180559872234e-01);
  p = __builtin_fma(p, r, 1.0);
  float z = (float)(p * bits_f64((uint64_t)((int32_t)n + 1023) << 52));
  float a = __builtin_fabsf(x), half = 0.5f * y;
  bool_t whole = __builtin_truncf(y) == y;
  bool_t odd = whole & (__builtin_truncf(half) != half);
  float big = y > 0.0f ? INFINITY : 0.0f, small = y > 0.0f ? 0.0f : INFINITY;
  z = a == 0.0f ? small : z;
  z = a == INFINITY ? big : z;
  float at_infinity = a == 1.0f ? 1.0f : ((a > 1.0f) == (y > 0.0f) ? INFINITY : 0.0f);
  z = __builtin_fabsf(y) == INFINITY ? at_infinity : z;
  z = bits_i32(x) < 0 && odd ? -z : z;
  z = x < 0.0f && !whole && a != INFINITY ? NAN : z;
  z = x != x || y != y ? x + y : z;
  return y == 0.0f || x == 1.0f ? 1.0f : z;
}
INLINE float sigmoid_f32(float x) {
  float e = exp_below_1(x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
INLINE float tanh_f32(float x) {
  float a = __builtin_fabsf(x);
  float t = expm1_moderate(a + a);
  float y = a > 10.0f ? 1.0f : t / (t + 2.0f);
  return __builtin_copysignf(y, x);
}
/* erf(x) for |x| < 0.88, with s = x * x */
INLINE float erf_near_zero(float x, float s) {
  float p = 8.565669270e-05f;
  p = __builtin_fmaf(p, s, -8.183478495e-04f);
  p = __builtin_fmaf(p, s, 5.204043049e-03f);
  p = __builtin_fmaf(p, s, -2.686031448e-02f);
  p = __builtin_fmaf(p, s, 1.128370483e-01f);
  p = __builtin_fmaf(p, s, -3.761263367e-01f);
  p = __builtin_fmaf(p, s, 1.283791665e-01f);
  return __builtin_fmaf(p, x, x);
}
INLINE float erf_f32(float x) {
  float t = __builtin_fabsf(x), p = erf_near_zero(x, x * x);
  float c = t > 4.0f ? 4.0f : t;
  float q = 8.170751544e-06f;
  q = __builtin_fmaf(-4.642145656e-07f, c, q);
  q = __builtin_fmaf(q, c, -4.349407998e-05f);
  q = __builtin_fmaf(q, c, -1.339097631e-04f);
  q = __builtin_fmaf(q, c, 3.269554186e-03f);
  q = __builtin_fmaf(q, c, -2.332867251e-02f);
  q = __builtin_fmaf(q, c, 1.059473539e-01f);
  q = __builtin_fmaf(q, c, 6.352525246e-01f);
  q = __builtin_fmaf(q, c, 1.128634438e+00f);
  float far = __builtin_copysignf(1.0f - exp_moderate(-q * c), x);
  float y = t > 0.88f ? far : p;
  return x != x ? x : y;
}

INLINE double logaddexp_f64(double x, double y) {
  return x == y ? x + log(2.0) : maximum_f64(x, y) + log1p(exp(-fabs(x - y)));
}
INLINE float logaddexp_f32(float x, float y) {
  return x == y ? x + 0x1.62e43p-1f : maximum_f32(x, y) + log1p_f32(exp_f32(-__builtin_fabsf(x - y)));
}
