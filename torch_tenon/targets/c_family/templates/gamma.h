/* log |gamma(x)| and its derivative, for kernels that name them. */

/* lgamma(1 + d) for d in [-0.5, 3] is d (d - 1) times the quotient of these. */
INLINE double lgamma_above(double d) {
  double p = 5.398671069328108242e-7;
  p = __builtin_fma(p, d, 0.000286111466203586169);
  p = __builtin_fma(p, d, 0.01051732356314415821);
  p = __builtin_fma(p, d, 0.1252466529131249475);
  p = __builtin_fma(p, d, 0.6705799887330138766);
  p = __builtin_fma(p, d, 1.839602848082527033);
  p = __builtin_fma(p, d, 2.682682528408481877);
  p = __builtin_fma(p, d, 1.975525042043364908);
  p = __builtin_fma(p, d, 0.5772156649015337155);
  return __builtin_fma(d, d, -d) * p; /* not a negative zero for d = 0 */
}
INLINE double lgamma_below(double d) {
  double q = 0.00007162978576211168481;
  q = __builtin_fma(q, d, 0.004222368494404803901);
  q = __builtin_fma(q, d, 0.07361510273570882707);
  q = __builtin_fma(q, d, 0.564107986734366466);
  q = __builtin_fma(q, d, 2.234456600655902364);
  q = __builtin_fma(q, d, 4.905343913682570376);
  q = __builtin_fma(q, d, 6.013050676389021287);
  q = __builtin_fma(q, d, 3.847394562558819187);
  return __builtin_fma(q, d, 1.0);
}
/* Stirling's series for a >= 4, with w = 1 / a */
INLINE double lgamma_large(double a, double w, double log_a) {
  double z = w * w;
  double p = -0.009356480832099651359;
  p = __builtin_fma(p, z, 0.004916264969613514894);
  p = __builtin_fma(p, z, -0.001850193573383028792);
  p = __builtin_fma(p, z, 0.0008399587627664967666);
  p = __builtin_fma(p, z, -0.0005952114009275270167);
  p = __builtin_fma(p, z, 0.0007936505953628145159);
  p = __builtin_fma(p, z, -0.002777777777212449768);
  p = __builtin_fma(p, z, 0.0833333333333330683);
  return __builtin_fma(a - 0.5, log_a, __builtin_fma(p, w, 0.91893853320467274178) - a);
}
/* |sin(pi x)| / pi */
INLINE double sine_of_turns(double x) {
  double f = __builtin_fabs(x - __builtin_rint(x)), z = f * f;
  double p = -6.723645221785169343e-6;
  p = __builtin_fma(p, z, 0.0001483252826310532581);
  p = __builtin_fma(p, z, -0.00234605879399025258);
  p = __builtin_fma(p, z, 0.02614784515833179907);
  p = __builtin_fma(p, z, -0.19075182394858088);
  p = __builtin_fma(p, z, 0.8117424252777612759);
  p = __builtin_fma(p, z, -1.644934066848157218);
  return f * __builtin_fma(p, z, 0.9999999999999998579);
}
/* In float64, because terms cancel near the zeros between the poles. For x < 0 by
 * gamma(x) gamma(-x) = -pi / (x sin(pi x)); one division serves for four. */
INLINE float lgamma_f32(float x) {
  double a = __builtin_fabs((double)x), sine = a * sine_of_turns(a);
  double d = a < 0.5 ? (double)x : a < 4 ? a - 1 : 0;
  double f = log_fraction(a), g = log_fraction(sine), q = lgamma_below(d);
  double qa = q * a, fg = (2 + f) * (2 + g), inverse = 1 / (qa * fg);
  double near = lgamma_above(d) * (inverse * fg * a), w = inverse * fg * q;
  double log_a = log_sum(log_exponent(a), f, f * (inverse * qa * (2 + g)));
  double log_sine = log_sum(log_exponent(sine), g, g * (inverse * qa * (2 + f)));
  double y = a < 4 ? near : lgamma_large(a, w, log_a);
  y = x < 0 ? -log_sine - y : y;
  y = a < 0.5 ? near - log_a : y;
  bool_t pole = (x <= 0) & (__builtin_rintf(x) == x);
  return pole | (a == INFINITY) ? INFINITY : (float)y;
}
INLINE double lgamma_f64(double x) { return lgamma(x); }

INLINE double digamma_f64(double x) {
  if (x == 0) return copysign((double)INFINITY, -x);
  if (x < 0 && trunc(x) == x) return NAN;
  double reflected = 0;
  if (x < 0) {
    reflected = -3.14159265358979323846 / tan(3.14159265358979323846 * (x - trunc(x)));
    x = 1 - x;
  }
  double sum = 0;
  for (; x < 10; x += 1) sum -= 1 / x;
  double z = x < 1e17 ? 1 / (x * x) : 0;
  double tail = z * (8.33333333333333333333e-2 + z * (-8.33333333333333333333e-3 + z * (3.96825396825396825397e-3 +
      z * (-4.16666666666666666667e-3 + z * (7.57575757575757575758e-3 + z * (-2.10927960927960927961e-2 + z * 8.33333333333333333333e-2))))));
  return sum + log(x) - 0.5 / x - tail + reflected;
}
INLINE float digamma_f32(float x) { return (float)digamma_f64((double)x); }

