/* Special functions that need the C library or its long double, after those of special.h. */

/* Bessel functions of the first and second kind: the C library's */
static double special_bessel_j0_f64(double x) { return isinf(x) ? NAN : j0(x); }
static double special_bessel_j1_f64(double x) { return isinf(x) ? NAN : j1(x); }
static double special_bessel_y0_f64(double x) { return x < 0 || isinf(x) ? NAN : y0(x); }
static double special_bessel_y1_f64(double x) { return x < 0 || isinf(x) ? NAN : y1(x); }

/* Airy's Ai: its power series, K of order 1/3, or the series for large negative arguments */
static double special_airy_ai_f64(double x) {
  if (isinf(x)) return NAN;
  if (x > 1) {
    double z = 2 * x * sqrt(x) / 3;
    return sqrt(x / 3) * bessel_k_scaled(z, 1.0 / 3) * exp(-z) / PI;
  }
  if (x >= -9) {
    long double f = 1, g = x, sum = 0, cube = (long double)x * x * x;
    long double c = 0.355028053887817239260063186L, d = 0.258819403792806798405183560L;
    for (int k = 0; k < 90; ++k) {
      sum += c * f - d * g;
      f *= cube / ((3 * k + 2.0L) * (3 * k + 3));
      g *= cube / ((3 * k + 3.0L) * (3 * k + 4));
    }
    return (double)sum;
  }
  double a = -x, z = 2 * a * sqrt(a) / 3, u = 1, part[2] = {1, 0};
  for (int k = 1; k < 20; ++k) {
    double next = u * (6.0 * k - 5) * (6.0 * k - 3) * (6.0 * k - 1) / (216.0 * k * (2 * k - 1)) / z;
    if (next > u) break;
    u = next;
    part[k & 1] += k & 2 ? -u : u;
  }
  double angle = z - PI / 4;
  return (cos(angle) * part[0] + sin(angle) * part[1]) / (sqrt(PI) * sqrt(sqrt(a)));
}
SPECIAL_1(airy_ai)
