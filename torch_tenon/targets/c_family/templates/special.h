/* Special functions in float64, for kernels that name one of them; float32 is computed in float64,
 * here or in special_f32.h.
 * Methods: power series where all terms have one sign, asymptotic series where their smallest term
 * is below the rounding, trapezoidal sums of integrals whose error falls exponentially (Abramowitz
 * and Stegun, chapters 6, 7, 9, 10, 22, 23; NIST DLMF 10.32, 3.5). Where PyTorch's kernels for the
 * host give no number, as the Bessel functions' at infinity, these give none either. */

#define PI 3.14159265358979323846
#define SPECIAL_1(N)                                                                              \
  static float special_##N##_f32(float x) { return (float)special_##N##_f64((double)x); }
#define SPECIAL_2(N)                                                                              \
  static float special_##N##_f32(float x, float y) {                                              \
    return (float)special_##N##_f64((double)x, (double)y);                                        \
  }

static double special_spherical_bessel_j0_f64(double x) {
  if (isinf(x)) return 0;
  if (fabs(x) > 0.5) return sin(x) / x;
  double z = x * x;
  return 1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110 * (1 - z / 156)))));
}
SPECIAL_1(spherical_bessel_j0)

/* exp(-|x|) I_n(x) for n of 0 and 1 */
static double bessel_i_scaled(double x, int n) {
  double a = fabs(x), sum, term;
  if (isinf(a)) return n && x < 0 ? -0.0 : 0;
  if (a <= 25) {
    double z = a * a / 4;
    sum = term = n ? a / 2 : 1;
    for (int k = 1; term > sum * 1e-18; ++k) sum += term *= z / ((double)k * (k + n));
    sum *= exp(-a);
  } else {
    sum = term = 1;
    for (int k = 1; k < 40; ++k) {
      double next = -term * (4.0 * n * n - (2.0 * k - 1) * (2.0 * k - 1)) / (8 * a * k);
      if (fabs(next) > fabs(term) || fabs(next) < 1e-18) break;
      sum += term = next;
    }
    sum /= sqrt(2 * PI) * sqrt(a);
  }
  return n && x < 0 ? -sum : sum;
}
static double special_i0e_f64(double x) { return bessel_i_scaled(x, 0); }
static double special_i1e_f64(double x) { return bessel_i_scaled(x, 1); }
static double special_i0_f64(double x) {
  return bessel_i_scaled(x, 0) * exp(fabs(x) / 2) * exp(fabs(x) / 2);
}
static double special_i1_f64(double x) {
  return bessel_i_scaled(x, 1) * exp(fabs(x) / 2) * exp(fabs(x) / 2);
}

/* exp(x) K_v(x): the integral of exp(-x (cosh t - 1)) cosh(v t) over t from 0 */
static double bessel_k_scaled(double x, double v) {
  if (!(x > 0)) return x == 0 ? INFINITY : NAN;
  if (isinf(x)) return 0;
  if (v == 1 && x < 1e-200) return 1 / x; /* where cosh overflows */
  double h = 0.25 / (x > 1 ? sqrt(x) : 1), sum = 0.5;
  for (int k = 1; k < 20000; ++k) {
    double s = sinh(k * h / 2), term = exp(-2 * x * s * s) * cosh(v * k * h);
    sum += term;
    if (term < sum * 1e-18 && x * s * s > 1) break;
  }
  return sum * h;
}
static double special_scaled_modified_bessel_k0_f64(double x) { return bessel_k_scaled(x, 0); }
static double special_scaled_modified_bessel_k1_f64(double x) { return bessel_k_scaled(x, 1); }
static double special_modified_bessel_k0_f64(double x) { return bessel_k_scaled(x, 0) * exp(-x); }
static double special_modified_bessel_k1_f64(double x) { return bessel_k_scaled(x, 1) * exp(-x); }

/* exp(x^2) erfc(x) */
static double special_erfcx_f64(double x) {
  if (x < 10) return x < -27 ? INFINITY : exp(x * x) * erfc(x);
  double sum = 1, term = 1, z = 1 / (2 * x * x);
  for (int k = 1; k < 30 && fabs(term) > 1e-18; ++k) sum += term *= -(2 * k - 1) * z;
  return sum / (x * sqrt(PI));
}
SPECIAL_1(erfcx)
static double special_log_ndtr_f64(double x) {
  double t = x * 0.70710678118654752440;
  return x < -1 ? log(special_erfcx_f64(-t) / 2) - t * t : log1p(-erfc(t) / 2);
}
SPECIAL_1(log_ndtr)

/* The normal distribution's quantile: the inverse error function, or in the far tails a rational start
 * and Halley's steps */
static double special_ndtri_f64(double p) {
  if (!(p > 0 && p < 1)) return p == 0 ? -INFINITY : p == 1 ? INFINITY : NAN;
  double middle = 4 * p * (1 - p), f = log_fraction(middle);
  if (middle > 0x1p-50) {
    double w = -log_sum(log_exponent(middle), f, f / (2 + f));
    return 1.41421356237309504880 * (2 * p - 1) * erfinv_factor(w);
  }
  double tail = p < 0.5 ? p : 1 - p, t = sqrt(-2 * log(tail));
  double x = t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                     (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  for (int k = 0; k < 3; ++k) {
    double density = exp(-x * x / 2) / sqrt(2 * PI);
    if (density == 0) break;
    double u = (tail - 0.5 * erfc(x * 0.70710678118654752440)) / density;
    x -= u / (1 + u * x / 2);
  }
  return p < 0.5 ? -x : x;
}

/* Hurwitz's zeta by the Euler-Maclaurin formula, in Cephes' steps, which PyTorch takes too: where
 * all powers are 0 and a coefficient is infinite, it is NaN */
static double special_zeta_f64(double s, double q) {
  const double divisors[] = {
      12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10,
      -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
      1.8152105401943546773e17, -7.1661652561756670113e18};
  const double least = 1.11022302462515654042e-16;
  if (s == 1) return INFINITY;
  if (s < 1) return NAN;
  if (q <= 0) {
    if (q == floor(q)) return INFINITY;
    if (s != floor(s)) return NAN;
  }
  double sum = pow(q, -s), a = q, power = 0, factor = 1;
  for (int k = 0; k < 9 || a <= 9; ++k) {
    a += 1;
    power = pow(a, -s);
    sum += power;
    if (-least * sum < power && power < least * sum) return sum;
  }
  sum += power * a / (s - 1) - power / 2;
  for (int k = 0; k < 12; ++k) {
    factor *= s + 2 * k;
    power /= a;
    double term = factor * power / divisors[k];
    sum += term;
    if (fabs(term / sum) < least) return sum;
    factor *= s + 2 * k + 1;
    power /= a;
  }
  return sum;
}
SPECIAL_2(zeta)
INLINE double two_squares(double x) { /* 1 / x^2 + 1 / (x + 1)^2 */
  double y = x + 1, product = x * y;
  return (x * x + y * y) / (product * product);
}
/* trigamma(x) of x >= 1/2: eight terms, and the asymptotic series behind them */
INLINE double trigamma_above(double x) {
  double z = x < 10 ? x : 10, near = two_squares(z) + two_squares(z + 2);
  double sum = near + (two_squares(z + 4) + two_squares(z + 6));
  double w = 1 / (x < 10 ? x + 8 : x), q = w * w, p = -3617.0 / 510;
  p = __builtin_fma(p, q, 7.0 / 6);
  p = __builtin_fma(p, q, -691.0 / 2730);
  p = __builtin_fma(p, q, 5.0 / 66);
  p = __builtin_fma(p, q, -1.0 / 30);
  p = __builtin_fma(p, q, 1.0 / 42);
  p = __builtin_fma(p, q, -1.0 / 30);
  p = __builtin_fma(p, q, 1.0 / 6);
  double far = w + q * (0.5 + w * p);
  return x < 10 ? sum + far : far;
}
/* That of x < 1/2 by reflection. At a pole the sine of a rounded multiple of pi is not zero, and
 * PyTorch's result is finite: the angle is rounded as there. */
INLINE double trigamma(double x, double angle) {
  double y = trigamma_above(x < 0.5 ? 1 - x : x), s = sin(x < 0.5 ? angle : 0.5);
  return x < 0.5 ? PI * PI / (s * s) - y : y;
}
static double polygamma_by_zeta(double n, double x) {
  if (n == 0) return digamma_f64(x);
  return (fmod(n, 2.0) == 0 ? -1 : 1) * exp(lgamma(n + 1)) * special_zeta_f64(n + 1, x);
}
INLINE double special_polygamma_f64(double n, double x) {
  return n == 1 ? trigamma(x, PI * x) : polygamma_by_zeta(n, x);
}
INLINE float special_polygamma_f32(float n, float x) {
  return (float)(n == 1 ? trigamma(x, (float)PI * x) : polygamma_by_zeta(n, x));
}

/* The regularized incomplete gamma functions: lower (a series) and upper (a continued fraction) */
static double log_gamma_above_1(double a) { /* of 1 + a, which may lose the digits of a */
  if (a > 1e-5) return lgamma(1 + a);
  return a * (-0.57721566490153286 + a * (0.82246703342411322 - a * 0.40068563438653143));
}
/* The upper one of small numbers, which 1 less the lower one has no digits of */
static double upper_gamma_of_small(double a, double x) {
  double term = 1, sum = 0, power = a * log(x) - log_gamma_above_1(a);
  for (double k = 1; k < 100; k += 1) sum += (term *= -x / k) / (a + k);
  return -expm1(power) - a * exp(power) * sum;
}
/* Temme's expansion for a large a: a series has too many terms there, and its factor no digits */
static double gamma_part_of_large(double a, double x, int upper) {
  double m = (x - a) / a, side = upper ? 1 : -1;
  double series = m * m * (1.0 / 2 - m * (1.0 / 3 - m * (1.0 / 4 - m / 5)));
  double half = fabs(m) < 1e-3 ? series : m - log1p(m), eta = copysign(sqrt(2 * half), m);
  double near = -1.0 / 3 + eta * (1.0 / 12 - eta * (2.0 / 135 - eta / 864));
  double lead = fabs(eta) < 0.1 ? near : 1 / m - 1 / eta;
  return 0.5 * erfc(side * eta * sqrt(a / 2)) + side * exp(-a * half) * lead / sqrt(2 * PI * a);
}
static double gamma_part(double a, double x, int upper) {
  if (x < 0 || a < 0) return NAN;
  if (a == 0) return x > 0 ? (upper ? 0 : 1) : NAN;
  if (x == 0) return upper;
  if (isinf(a)) return isinf(x) ? NAN : upper;
  if (isinf(x)) return !upper;
  if (x != x || a != a) return NAN; /* a number decides where it is an end */
  if (upper && x <= 1.1 && a <= (x <= 0.5 ? -0.4 / log(x) : 1.1 * x))
    return upper_gamma_of_small(a, x);
  if (a > 1e5) return gamma_part_of_large(a, x, upper);
  double front = exp(a * log(x) - x - lgamma(a));
  if (x < a + 1) {
    double sum = 1 / a, term = sum;
    for (double k = a + 1; term > sum * 1e-17; k += 1) sum += term *= x / k;
    return upper ? 1 - sum * front : sum * front;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int k = 1; k < 100000; ++k) { /* Lentz's method */
    double n = -k * (k - a);
    b += 2;
    d = 1 / (n * d + b);
    c = b + n / c;
    h *= d * c;
    if (fabs(d * c - 1) < 1e-16) break;
  }
  return upper ? front * h : 1 - front * h;
}
static double special_igamma_f64(double a, double x) { return gamma_part(a, x, 0); }
static double special_igammac_f64(double a, double x) { return gamma_part(a, x, 1); }
SPECIAL_2(igamma)
SPECIAL_2(igammac)

/* Orthogonal polynomials of degree n, by recurrence in double. As in PyTorch's kernels numbers beyond
   the greatest of the dtype are infinite, and soon no numbers. */
static double within_dtype(double x, double most) {
  return fabs(x) > most ? copysign((double)INFINITY, x) : x;
}
#define FLOAT_MOST 0x1.fffffep127
#define DOUBLE_MOST 0x1.fffffffffffffp1023

/* Those of Chebyshev differ in the polynomial of degree 1. Beyond as many steps as PyTorch's kernels
   take they are trigonometric, as there: beside a root the two ways have no digit in common. */
static double chebyshev(
    double x, double degree, double slope, double shift, int kind, int steps, double most) {
  if (!(degree > -1 && degree < 0x1p63)) return 0; /* degrees are cut to integers */
  int64_t n = (int64_t)degree;
  if (n > steps && fabs(x) < 1) {
    double t = acos(x);
    if (kind == 0) return cos(n * t);
    if (kind == 1) return sin((n + 1) * t) / sin(t);
    return kind == 2 ? cos((n + 0.5) * t) / cos(t / 2) : sin((n + 0.5) * t) / sin(t / 2);
  }
  double p = 1, q = shift == 0 ? slope * x : slope * x + shift; /* a zero keeps its sign */
  if (n == 0) return p;
  if (n > steps && fabs(x) == 1) { /* arithmetic progressions, with alternating signs at -1 */
    double sign = x < 0 && n % 2 ? -1 : 1, step = fabs(q) - 1;
    return sign * (1 + step * n);
  }
  q = within_dtype(q, most);
  for (int64_t k = 2; k <= n && !isnan(q); ++k) {
    double r = within_dtype(2 * x * q - p, most);
    p = q, q = r;
  }
  return q;
}
#define CHEBYSHEV(N, SLOPE, SHIFT, KIND, STEPS, SHIFTED_STEPS)                                    \
  static double special_chebyshev_polynomial_##N##_f64(double x, double n) {                      \
    return chebyshev(x, n, SLOPE, SHIFT, KIND, STEPS, DOUBLE_MOST);                               \
  }                                                                                               \
  static double special_shifted_chebyshev_polynomial_##N##_f64(double x, double n) {              \
    return chebyshev(2 * x - 1, n, SLOPE, SHIFT, KIND, SHIFTED_STEPS, DOUBLE_MOST);               \
  }                                                                                               \
  static float special_chebyshev_polynomial_##N##_f32(float x, float n) {                         \
    return (float)chebyshev(x, n, SLOPE, SHIFT, KIND, STEPS, FLOAT_MOST);                         \
  }                                                                                               \
  static float special_shifted_chebyshev_polynomial_##N##_f32(float x, float n) {                 \
    double shifted = within_dtype(2 * (double)x - 1, FLOAT_MOST);                                 \
    return (float)chebyshev(shifted, n, SLOPE, SHIFT, KIND, SHIFTED_STEPS, FLOAT_MOST);           \
  }
CHEBYSHEV(t, 1, 0, 0, 6, 6)
CHEBYSHEV(u, 2, 0, 1, 8, 6)
CHEBYSHEV(v, 2, -1, 2, 8, 6)
CHEBYSHEV(w, 2, 1, 3, 8, 4)

/* PyTorch gives NaN above a degree. */
static double hermite(double x, double degree, double factor, double last, double most) {
  if (!(degree > -1) || isinf(degree)) return 0;
  if (degree > last) return NAN;
  double p = 0, q = 1;
  for (int64_t k = 0; k < (int64_t)degree; ++k) {
    double r = within_dtype(factor * (x * q - (double)k * p), most);
    p = q, q = r;
  }
  return q;
}
static double laguerre(double x, double n, double most) {
  if (!(n > -1 && n < 0x1p63)) return 0;
  double p = 0, q = 1;
  for (int64_t k = 0; x != 0 && k < (int64_t)n && !isnan(q); ++k) {
    double r = within_dtype(((2 * k + 1 - x) * q - k * p) / (k + 1), most);
    p = q, q = r;
  }
  return q;
}
static double legendre(double x, double n, double most) {
  if (!(n > -1 && n < 0x1p63)) return 0;
  if (fabs(x) == 1) return x > 0 || (int64_t)n % 2 == 0 ? 1 : -1;
  double p = 0, q = 1;
  for (int64_t k = 0; k < (int64_t)n && !isnan(q); ++k) {
    double r = within_dtype(((2 * k + 1) * x * q - k * p) / (k + 1), most);
    p = q, q = r;
  }
  return q;
}
#define POLYNOMIAL(NAME, IN_DOUBLE, IN_FLOAT)                                                     \
  static double special_##NAME##_f64(double x, double n) { return IN_DOUBLE; }                    \
  static float special_##NAME##_f32(float x, float n) { return (float)IN_FLOAT; }
POLYNOMIAL(hermite_polynomial_h, hermite(x, n, 2, 512, DOUBLE_MOST), hermite(x, n, 2, 128, FLOAT_MOST))
POLYNOMIAL(hermite_polynomial_he, hermite(x, n, 1, 512, DOUBLE_MOST), hermite(x, n, 1, 128, FLOAT_MOST))
POLYNOMIAL(laguerre_polynomial_l, laguerre(x, n, DOUBLE_MOST), laguerre(x, n, FLOAT_MOST))
POLYNOMIAL(legendre_polynomial_p, legendre(x, n, DOUBLE_MOST), legendre(x, n, FLOAT_MOST))
