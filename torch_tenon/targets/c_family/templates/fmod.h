/* fmod of float64 for a whole vector, for kernels that name it: gcc calls these functions, by the names
 * of the x86 vector ABI, where it makes a vector of a loop. Elsewhere fmod is the C library's. */
#if defined(__x86_64__) && defined(__ELF__) && defined(__GNUC__) && !defined(__clang__)

/* What is left of finite a >= 0 without the multiples of b > 0: 49 bits of the quotient at a time.
 * With no more of them the product is close enough to a for the difference to be exact. */
static __attribute__((noinline, cold, unused)) double fmod_of_large_quotient(double a, double b) {
  while (__builtin_fabs(a) >= b) {
    int more = ilogb(a) - ilogb(b) - 49;
    double multiple = more > 0 ? ldexp(b, more) : b;
    a = __builtin_fma(-__builtin_rint(a / multiple), multiple, a);
  }
  return a < 0 ? a + b : a;
}

#define FMOD_OVER(N, ISA)                                                                         \
  typedef double doubles_##ISA __attribute__((vector_size(8 * N)));                               \
  __attribute__((visibility("hidden"))) doubles_##ISA fmod_##ISA(doubles_##ISA, doubles_##ISA)    \
      __asm__("_ZGV" #ISA #N "vv_fmod");                                                          \
  doubles_##ISA fmod_##ISA(doubles_##ISA x, doubles_##ISA y) {                                    \
    double a[N], b[N], r[N];                                                                      \
    int64_t large[N], any = 0;                                                                    \
    _Pragma("omp simd reduction(|:any)") for (int k = 0; k < N; ++k) {                            \
      a[k] = __builtin_fabs(x[k]), b[k] = __builtin_fabs(y[k]);                                   \
      double q = a[k] / b[k], rest = __builtin_fma(-__builtin_rint(q), b[k], a[k]);               \
      rest = rest < 0 ? rest + b[k] : rest;                                                       \
      r[k] = b[k] == INFINITY && a[k] < INFINITY ? a[k] : rest;                                   \
      any |= large[k] = q > 0x1p50 && a[k] < INFINITY && b[k] > 0;                                \
    }                                                                                             \
    for (int k = 0; !LIKELY(!any) && k < N; ++k)                                                  \
      if (large[k]) r[k] = fmod_of_large_quotient(a[k], b[k]);                                    \
    doubles_##ISA z;                                                                              \
    for (int k = 0; k < N; ++k) z[k] = __builtin_copysign(r[k], x[k]);                            \
    return z;                                                                                     \
  }
FMOD_OVER(2, bN)
#ifdef __AVX2__
FMOD_OVER(4, dN)
#elif defined(__AVX__)
FMOD_OVER(4, cN)
#endif
#ifdef __AVX512F__
FMOD_OVER(8, eN)
#endif
OVER_VECTORS(fmod, double, double)
#endif
