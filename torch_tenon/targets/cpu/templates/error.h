/* erfc of float32 and the inverse error function, for kernels that name them. */

/* exp(-x^2) times a polynomial over x + 2.5 */
INLINE float erfc_f32(float x) {
  float a = __builtin_fabsf(x);
  float t = a > 10.2f ? 10.2f : a, s = t * t, rest = __builtin_fmaf(t, t, -s);
  float n = __builtin_fmaf(-s, 0x1.715476p+0f, ROUND + 191.0f);
  float e = expm1_near_zero(less_log2(-s, n - (ROUND + 191.0f)) - rest);
  float w = 1.0f / (t + 2.5f), u = (t - 2.5f) * w;
  u = __builtin_fmaf(w, __builtin_fmaf(-u, t, __builtin_fmaf(u + 1.0f, -2.5f, t)), u);
  float p = 5.647738712e-04f;
  p = __builtin_fmaf(p, u, -3.935433512e-04f);
  p = __builtin_fmaf(p, u, -4.757362557e-03f);
  p = __builtin_fmaf(p, u, 8.378870833e-03f);
  p = __builtin_fmaf(p, u, 2.835056708e-02f);
  p = __builtin_fmaf(p, u, -1.712493876e-01f);
  p = __builtin_fmaf(p, u, 4.539147863e-01f);
  p = __builtin_fmaf(p, u, -8.046519109e-01f);
  p = __builtin_fmaf(p, u, 1.054031814e+00f);
  float q = p * w;
  q = __builtin_fmaf(w, __builtin_fmaf(-q, t, __builtin_fmaf(q, -2.5f, p)), q);
  float far = __builtin_fmaf(q, e, q) * power_of_2(n) * 0x1p-64f;
  far = bits_i32(x) < 0 ? 2.0f - far : far;
  float y = a < 0.6f ? 1.0f - erf_near_zero(x, x * x) : far;
  return x != x ? x : y;
}

/* By w = -log(1 - y^2): y times a polynomial of w, or of its root where that is large. */
INLINE float erfinv_f32(float y) {
  float w = -log_f32(__builtin_fmaf(-y, y, 1.0f)), v = w - 2.5f, u = __builtin_sqrtf(w) - 3.1f;
  float p = -8.7910038579e-09f;
  p = __builtin_fmaf(p, v, 2.3232656495e-08f);
  p = __builtin_fmaf(p, v, 4.6616994679e-07f);
  p = __builtin_fmaf(p, v, -3.4627048435e-06f);
  p = __builtin_fmaf(p, v, -4.9633446079e-06f);
  p = __builtin_fmaf(p, v, 2.1834443938e-04f);
  p = __builtin_fmaf(p, v, -1.2527418838e-03f);
  p = __builtin_fmaf(p, v, -4.1773867803e-03f);
  p = __builtin_fmaf(p, v, 2.4664028616e-01f);
  p = __builtin_fmaf(p, v, 1.5014093593e+00f);
  float q = 1.2896318006e-04f;
  q = __builtin_fmaf(q, u, -2.0265534224e-04f);
  q = __builtin_fmaf(q, u, -2.8516960136e-04f);
  q = __builtin_fmaf(q, u, 1.3638130784e-03f);
  q = __builtin_fmaf(q, u, -2.7217878608e-03f);
  q = __builtin_fmaf(q, u, 4.1093072051e-03f);
  q = __builtin_fmaf(q, u, -5.6953584206e-03f);
  q = __builtin_fmaf(q, u, 7.4612007736e-03f);
  q = __builtin_fmaf(q, u, 1.0033560694e+00f);
  q = __builtin_fmaf(q, u, 2.9332316557e+00f);
  float a = __builtin_fabsf(y);
  return a == 1.0f ? y * INFINITY : y * (w < 5.0f ? p : q);
}
/* Wichura's quotients of polynomials for the normal distribution's quantile (Applied Statistics 37,
 * algorithm AS 241), of which this is 1 / sqrt(2) */
#define PICK(A, B, C) (middle ? A : tail ? B : C)
INLINE double erfinv_f64(double y) {
  double a = __builtin_fabs(y);
  bool_t middle = a <= 0.85;
  double r = __builtin_sqrt(-log((1 - a) * 0.5));
  bool_t tail = r <= 5;
  double t = middle ? __builtin_fma(-0.25 * y, y, 0.180625) : r - (tail ? 1.6 : 5.0);
  double p = PICK(2509.0809287301226727, 7.7454501427834140764e-4, 2.01033439929228813265e-7);
  p = __builtin_fma(p, t, PICK(33430.575583588128105, 0.0227238449892691845833, 2.71155556874348757815e-5));
  p = __builtin_fma(p, t, PICK(67265.770927008700853, 0.24178072517745061177, 0.0012426609473880784386));
  p = __builtin_fma(p, t, PICK(45921.953931549871457, 1.27045825245236838258, 0.026532189526576123093));
  p = __builtin_fma(p, t, PICK(13731.693765509461125, 3.64784832476320460504, 0.29656057182850489123));
  p = __builtin_fma(p, t, PICK(1971.5909503065514427, 5.7694972214606914055, 1.7848265399172913358));
  p = __builtin_fma(p, t, PICK(133.14166789178437745, 4.6303378461565452959, 5.4637849111641143699));
  p = __builtin_fma(p, t, PICK(3.3871328727963666080, 1.42343711074968357734, 6.6579046435011037772));
  double q = PICK(5226.495278852545925, 1.05075007164441684324e-9, 2.04426310338993978564e-15);
  q = __builtin_fma(q, t, PICK(28729.085735721942674, 5.475938084995344946e-4, 1.4215117583164458887e-7));
  q = __builtin_fma(q, t, PICK(39307.89580009271061, 0.0151986665636164571966, 1.8463183175100546818e-5));
  q = __builtin_fma(q, t, PICK(21213.794301586595867, 0.14810397642748007459, 7.868691311456132591e-4));
  q = __builtin_fma(q, t, PICK(5394.1960214247511077, 0.68976733498510000455, 0.0148753612908506148525));
  q = __builtin_fma(q, t, PICK(687.1870074920579083, 1.6763848301838038494, 0.13692988092273580531));
  q = __builtin_fma(q, t, PICK(42.313330701600911252, 2.05319162663775882187, 0.59983220655588793769));
  q = __builtin_fma(q, t, 1.0);
  double z = (p / q) * 0.70710678118654752440;
  z = middle ? z * 0.5 * y : __builtin_copysign(z, y);
  z = a == 1 ? y * INFINITY : z;
  return a <= 1 ? z : NAN;
}
