/* C's names for what OpenCL C has under others: the scalar functions of targets/c_family/ need them.
 * Nothing is contracted that does not say so: random numbers are the same bits everywhere. */
#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#ifdef cl_khr_int64_base_atomics
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#endif
#ifdef cl_khr_int64_extended_atomics
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#endif
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef bool bool_t;
#define INT64_C(x) x##L
#define UINT64_C(x) x##UL
#define INT32_MIN INT_MIN
#define INT32_MAX INT_MAX
#define INT64_MIN LONG_MIN
#define INT64_MAX LONG_MAX
#define INLINE static inline __attribute__((always_inline))
#define LIKELY(x) (x)
#define __builtin_constant_p(x) 0 /* nothing is known to be one */
/* Whether integers are divided as floats, its compiler decides. */
#define BY_FLOATS(T, y) 0
#define QUOTIENT(T, x, d) (x)

INLINE uint32_t bits_u32(float x) { return as_uint(x); }
INLINE int32_t bits_i32(float x) { return as_int(x); }
INLINE float bits_f32(uint32_t u) { return as_float(u); }
INLINE int64_t bits_i64(double x) { return as_long(x); }
INLINE double bits_f64(uint64_t u) { return as_double(u); }
typedef float2 complex64_t;
INLINE complex64_t pair_f32(float real, float imag) { return (float2)(real, imag); }
INLINE float real_c64(complex64_t x) { return x.x; }
INLINE float imag_c64(complex64_t x) { return x.y; }
typedef double2 complex128_t;
INLINE complex128_t pair_f64(double real, double imag) { return (double2)(real, imag); }
INLINE double real_c128(complex128_t x) { return x.x; }
INLINE double imag_c128(complex128_t x) { return x.y; }
#define memcpy(to, from, size) copy_bytes((uint8_t *)(to), (const uint8_t *)(from), size)
INLINE void copy_bytes(uint8_t *to, const uint8_t *from, uint64_t size) {
  for (uint64_t k = 0; k < size; ++k) to[k] = from[k];
}

#define __builtin_fma fma
#define __builtin_fmaf fma
#define __builtin_fabs fabs
#define __builtin_fabsf fabs
/* Before a statement in braces: what is added up may be so in any order. Compilers that were made
 * of an older clang take it for an error. */
#if defined(__clang_major__) && __clang_major__ >= 11
#define IN_ANY_ORDER _Pragma("clang fp reassociate(on)")
#else
#define IN_ANY_ORDER
#endif
/* clang's own are instructions; a library's, which go through integers, are undefined where the
 * compiler knows that the number is NaN, and what follows is then taken for code that never runs. */
#ifndef __clang__
#define __builtin_floor floor
#define __builtin_floorf floor
#define __builtin_ceil ceil
#define __builtin_ceilf ceil
#define __builtin_trunc trunc
#define __builtin_truncf trunc
#define __builtin_rint rint
#define __builtin_rintf rint
#endif
#define __builtin_sqrt sqrt
#define __builtin_sqrtf sqrt
#define __builtin_copysign copysign
#define __builtin_copysignf copysign
#define sinf sin
#define cosf cos
#define tanf tan
#define asinf asin
#define acosf acos
#define atanf atan
#define atan2f atan2
#define sinhf sinh
#define coshf cosh
#define asinhf asinh
#define acoshf acosh
#define atanhf atanh
#define frexpf frexp
#define expf exp
#define fabsf fabs
#define half half_ /* a type here, a variable there */
