/* The logarithm of float64 without a call, for the functions of other templates: what divides besides
 * can share its division. */

/* log(x) of a normal float64 x > 0 is log_sum(log_exponent(x), f, f / (2 + f)) with f = log_fraction(x). */
#define LOG_FROM 0x3fe6a09e667f3bcdu /* the bits of sqrt(1/2) */
INLINE double log_exponent(double x) {
  uint64_t u = (uint64_t)bits_i64(x) - LOG_FROM + ((uint64_t)1023 << 52);
  return bits_f64(u >> 52 | 0x4330000000000000u) - (0x1p52 + 1023);
}
INLINE double log_fraction(double x) {
  return bits_f64((((uint64_t)bits_i64(x) - LOG_FROM) & 0xfffffffffffffu) + LOG_FROM) - 1;
}
INLINE double log_sum(double k, double f, double s) {
  double z = s * s, half = 0.5 * f * f;
  double p = 1.479819860511658591e-01;
  p = __builtin_fma(p, z, 1.531383769920937332e-01);
  p = __builtin_fma(p, z, 1.818357216161805012e-01);
  p = __builtin_fma(p, z, 2.222219843214978396e-01);
  p = __builtin_fma(p, z, 2.857142874366239149e-01);
  p = __builtin_fma(p, z, 3.999999999940941908e-01);
  p = __builtin_fma(p, z, 6.666666666666735130e-01);
  double low = __builtin_fma(k, 0x1.a39ef35793c76p-33, s * __builtin_fma(p, z, half));
  return __builtin_fma(k, 0x1.62e42feep-1, f - (half - low));
}
