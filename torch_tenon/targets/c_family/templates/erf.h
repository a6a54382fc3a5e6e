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
  p = __builtin_fmaf(p, u, -8.046519756e-01f);
  p = __builtin_fmaf(p, u, 1.054031814e+00f);
  float q = p * w;
  q = __builtin_fmaf(w, __builtin_fmaf(-q, t, __builtin_fmaf(q, -2.5f, p)), q);
  float far = __builtin_fmaf(q, e, q) * power_of_2(n) * 0x1p-64f;
  far = bits_i32(x) < 0 ? 2.0f - far : far;
  return a < 0.6f ? 1.0f - erf_near_zero(x, x * x) : far;
}

/* The inverse error function is y times a function of w = -log(1 - y^2) that grows like sqrt(w): a
 * quotient of polynomials over all that y can make of it. */
INLINE float erfinv_f32(float y) {
  float w = -log_normal(__builtin_fmaf(-y, y, 1.0f)), a = __builtin_fabsf(y);
  float p = 2.4348335762e-5f;
  p = __builtin_fmaf(p, w, 0.00064323135449f);
  p = __builtin_fmaf(p, w, 0.0077592865975f);
  p = __builtin_fmaf(p, w, 0.059550295542f);
  p = __builtin_fmaf(p, w, 0.3064090277f);
  p = __builtin_fmaf(p, w, 0.88622693636f);
  float q = 1.2937084885e-6f;
  q = __builtin_fmaf(q, w, 0.00017962376079f);
  q = __builtin_fmaf(q, w, 0.0018729512827f);
  q = __builtin_fmaf(q, w, 0.032184605067f);
  q = __builtin_fmaf(q, w, 0.083946514727f);
  q = __builtin_fmaf(q, w, 1.0f);
  float x = a < 1.0f ? y * (p / q) : y * INFINITY;
  return a <= 1.0f ? x : NAN;
}
/* Even and odd powers apart: each of two shorter sums is rounded less often. */
INLINE double erfinv_factor(double w) {
  double z = w * w;
  double even = 3.376355647485528223e-17;
  even = __builtin_fma(even, z, 1.101525374136789797e-12);
  even = __builtin_fma(even, z, 7.901162640550824203e-10);
  even = __builtin_fma(even, z, 2.789860112653707479e-7);
  even = __builtin_fma(even, z, 0.00004748124591140773414);
  even = __builtin_fma(even, z, 0.003572356072127386487);
  even = __builtin_fma(even, z, 0.1064616618971015215);
  even = __builtin_fma(even, z, 0.8862269254527580593);
  double odd = 1.463787390590919572e-14;
  odd = __builtin_fma(odd, z, 2.758555805064178676e-11);
  odd = __builtin_fma(odd, z, 1.630448525694849855e-8);
  odd = __builtin_fma(odd, z, 4.00567399163291612e-6);
  odd = __builtin_fma(odd, z, 0.000458224007466424495);
  odd = __builtin_fma(odd, z, 0.02225013979062583938);
  odd = __builtin_fma(odd, z, 0.3691933864587951609);
  double p = __builtin_fma(odd, w, even);
  even = 5.585251248039736348e-19;
  even = __builtin_fma(even, z, 1.541300938719858889e-13);
  even = __builtin_fma(even, z, 1.473994554800956747e-10);
  even = __builtin_fma(even, z, 7.028033143145523291e-8);
  even = __builtin_fma(even, z, 0.00001526433793198165345);
  even = __builtin_fma(even, z, 0.001543977126260010556);
  even = __builtin_fma(even, z, 0.06657296395500826917);
  even = __builtin_fma(even, z, 1.0);
  odd = 9.168964212015061984e-16;
  odd = __builtin_fma(odd, z, 6.041945481682296571e-12);
  odd = __builtin_fma(odd, z, 3.965111042675160037e-9);
  odd = __builtin_fma(odd, z, 1.125115683770041614e-6);
  odd = __builtin_fma(odd, z, 0.0001499120133490254171);
  odd = __builtin_fma(odd, z, 0.008295474425151664321);
  odd = __builtin_fma(odd, z, 0.1547907381104036658);
  return p / __builtin_fma(odd, w, even);
}
INLINE double erfinv_f64(double y) {
  double t = __builtin_fma(-y, y, 1.0), f = log_fraction(t), a = __builtin_fabs(y);
  double w = -log_sum(log_exponent(t), f, f / (2 + f));
  double x = a < 1 ? y * erfinv_factor(w) : y * INFINITY;
  return a <= 1 ? x : NAN;
}
