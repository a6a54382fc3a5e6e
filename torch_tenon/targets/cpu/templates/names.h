/* What the scalar functions of targets/c_family/ need of C. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)

/* glibc computes these for a whole vector at once (libmvec): to 4 ULP, and what is special as alone. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 35)
#define OVER_VECTORS(NAME, ...)                                                                    \
  _Pragma("omp declare simd notinbranch") double NAME(__VA_ARGS__);
#define WITH_FLOAT(NAME)                                                                           \
  OVER_VECTORS(NAME, double)                                                                       \
  _Pragma("omp declare simd notinbranch") float NAME##f(float);
WITH_FLOAT(sin) WITH_FLOAT(cos) WITH_FLOAT(tan) WITH_FLOAT(asin) WITH_FLOAT(acos) WITH_FLOAT(atan)
WITH_FLOAT(sinh) WITH_FLOAT(cosh) WITH_FLOAT(asinh) WITH_FLOAT(acosh) WITH_FLOAT(atanh)
OVER_VECTORS(exp, double) OVER_VECTORS(exp2, double) OVER_VECTORS(expm1, double)
OVER_VECTORS(log, double) OVER_VECTORS(log2, double) OVER_VECTORS(log10, double)
OVER_VECTORS(log1p, double) OVER_VECTORS(tanh, double) OVER_VECTORS(erf, double)
OVER_VECTORS(erfc, double) OVER_VECTORS(pow, double, double) OVER_VECTORS(atan2, double, double)
#pragma omp declare simd notinbranch
float atan2f(float, float);
#endif
#endif

typedef _Bool bool_t;

INLINE uint32_t bits_u32(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
INLINE int32_t bits_i32(float x) { int32_t u; memcpy(&u, &x, 4); return u; }
INLINE float bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
INLINE int64_t bits_i64(double x) { int64_t u; memcpy(&u, &x, 8); return u; }
INLINE double bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

typedef float _Complex complex64_t;
typedef double _Complex complex128_t;
INLINE complex64_t pair_f32(float real, float imag) { return __builtin_complex(real, imag); }
INLINE complex128_t pair_f64(double real, double imag) { return __builtin_complex(real, imag); }
INLINE float real_c64(complex64_t x) { return __real__ x; }
INLINE float imag_c64(complex64_t x) { return __imag__ x; }
INLINE double real_c128(complex128_t x) { return __real__ x; }
INLINE double imag_c128(complex128_t x) { return __imag__ x; }

/* gcc divides vectors of integers as floats: see scalar.h. */
#define BY_FLOATS(T, y) ((sizeof(T) < 4 || (sizeof(T) == 4 && (T)-1 < 0)) && !__builtin_constant_p(y))
#define QUOTIENT(T, x, d)                                                                         \
  (sizeof(T) < 4 ? (T)(int32_t)((float)(x) / (float)(d)) : (T)(int32_t)((double)(x) / (double)(d)))
