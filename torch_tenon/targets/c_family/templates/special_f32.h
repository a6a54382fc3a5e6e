/* Special functions of float32 in float64, without branches and loops: gcc makes vectors of these.
 * Polynomials are Chebyshev interpolants, off by less than 3e-9 of what they are for. */

/* exp(-a) I_n(a) of a >= 0 is a power of w = 1 / (a + 8), times a for n = 1, times a polynomial of
 * u = (a - 8) / (a + 8). */
INLINE double bessel_i0_factor(double u) {
  double p = 0.0001809849095264;
  p = __builtin_fma(p, u, -0.001626299969772);
  p = __builtin_fma(p, u, -0.0009612588218237);
  p = __builtin_fma(p, u, 0.0110561383608);
  p = __builtin_fma(p, u, 0.00125803757225);
  p = __builtin_fma(p, u, -0.03557986380858);
  p = __builtin_fma(p, u, 0.005809928786938);
  p = __builtin_fma(p, u, 0.07305233794385);
  p = __builtin_fma(p, u, -0.0384968600397);
  p = __builtin_fma(p, u, -0.09978715493958);
  p = __builtin_fma(p, u, 0.1255565622825);
  p = __builtin_fma(p, u, 0.02956986977746);
  p = __builtin_fma(p, u, -0.2157233635798);
  p = __builtin_fma(p, u, 0.3076753274843);
  p = __builtin_fma(p, u, -0.3091183357674);
  p = __builtin_fma(p, u, 0.275433127418);
  p = __builtin_fma(p, u, -0.2448405822471);
  p = __builtin_fma(p, u, 0.2296763648546);
  p = __builtin_fma(p, u, -0.230756630788);
  p = __builtin_fma(p, u, 0.2504877270087);
  p = __builtin_fma(p, u, -0.3076509044339);
  return __builtin_fma(p, u, 0.5737271280966);
}
INLINE double bessel_i1_factor(double u) {
  double p = -0.001713758973243;
  p = __builtin_fma(p, u, 0.001166855942951);
  p = __builtin_fma(p, u, 0.0114758208459);
  p = __builtin_fma(p, u, -0.008284593677982);
  p = __builtin_fma(p, u, -0.03601878224575);
  p = __builtin_fma(p, u, 0.02931456369958);
  p = __builtin_fma(p, u, 0.07161225525554);
  p = __builtin_fma(p, u, -0.07396195370945);
  p = __builtin_fma(p, u, -0.09841122223815);
  p = __builtin_fma(p, u, 0.1593318648434);
  p = __builtin_fma(p, u, 0.0629090610726);
  p = __builtin_fma(p, u, -0.2933273668713);
  p = __builtin_fma(p, u, 0.1951460468664);
  p = __builtin_fma(p, u, 0.2411189883332);
  p = __builtin_fma(p, u, -0.7935704268336);
  p = __builtin_fma(p, u, 1.266228669357);
  p = __builtin_fma(p, u, -1.584400847118);
  p = __builtin_fma(p, u, 1.751919306397);
  p = __builtin_fma(p, u, -1.790590327321);
  p = __builtin_fma(p, u, 1.709679109788);
  p = __builtin_fma(p, u, -1.493820928976);
  return __builtin_fma(p, u, 1.073139945833);
}
INLINE float special_i0e_f32(float x) {
  double w = 1 / (__builtin_fabs((double)x) + 8);
  return (float)(bessel_i0_factor(__builtin_fma(-16.0, w, 1.0)) * __builtin_sqrt(w));
}
INLINE float special_i1e_f32(float x) {
  double a = __builtin_fabs((double)x), w = 1 / (a + 8), share = a > 0x1p100 ? 1 : a * w;
  double y = bessel_i1_factor(__builtin_fma(-16.0, w, 1.0)) * share * __builtin_sqrt(w);
  return (float)(x < 0 ? -y : y);
}
/* Infinite from where exp is, as the host's. */
INLINE float special_i0_f32(float x) { return special_i0e_f32(x) * exp_f32(__builtin_fabsf(x)); }
INLINE float special_i1_f32(float x) { return special_i1e_f32(x) * exp_f32(__builtin_fabsf(x)); }

/* K_n(x) of x <= 2: polynomials of u = x^2 / 2 - 1, one of them, which is I_n's, times log(x / 2);
 * of others exp(-x) / sqrt(x) times a polynomial of u = 4 / x - 1. */
INLINE double bessel_k0_rest(double u) {
  double p = 6.623716999098e-10;
  p = __builtin_fma(p, u, 6.094452405962e-08);
  p = __builtin_fma(p, u, 4.054506575967e-06);
  p = __builtin_fma(p, u, 0.0001828055514635);
  p = __builtin_fma(p, u, 0.005053392643205);
  p = __builtin_fma(p, u, 0.07177701034377);
  p = __builtin_fma(p, u, 0.3404973210134);
  return __builtin_fma(p, u, -0.3036207729158);
}
INLINE double bessel_k0_growth(double u) {
  double p = 3.273559677982e-10;
  p = __builtin_fma(p, u, 3.236735327731e-08);
  p = __builtin_fma(p, u, 2.357578968404e-06);
  p = __builtin_fma(p, u, 0.0001198206826415);
  p = __builtin_fma(p, u, 0.003928565105641);
  p = __builtin_fma(p, u, 0.07358986836169);
  p = __builtin_fma(p, u, 0.6358617281561);
  return __builtin_fma(p, u, 1.566082929756);
}
INLINE double bessel_k0_factor(double u) {
  double p = -7.686174163083e-08;
  p = __builtin_fma(p, u, 1.825788864265e-07);
  p = __builtin_fma(p, u, -2.231227544375e-07);
  p = __builtin_fma(p, u, 6.410188560625e-07);
  p = __builtin_fma(p, u, -2.216473674571e-06);
  p = __builtin_fma(p, u, 7.058262613142e-06);
  p = __builtin_fma(p, u, -2.47290740283e-05);
  p = __builtin_fma(p, u, 9.954699741673e-05);
  p = __builtin_fma(p, u, -0.0004797695908272);
  p = __builtin_fma(p, u, 0.003032892989602);
  p = __builtin_fma(p, u, -0.03107146181745);
  return __builtin_fma(p, u, 1.218595338497);
}
INLINE double bessel_k1_rest(double u) {
  double p = -4.235835420313e-11;
  p = __builtin_fma(p, u, -4.474326823829e-09);
  p = __builtin_fma(p, u, -3.495829772729e-07);
  p = __builtin_fma(p, u, -1.910976195619e-05);
  p = __builtin_fma(p, u, -0.0006724746609658);
  p = __builtin_fma(p, u, -0.013254642949);
  p = __builtin_fma(p, u, -0.108664621485);
  return __builtin_fma(p, u, -0.0574558561352);
}
INLINE double bessel_k1_growth(double u) {
  double p = 2.031903357625e-11;
  p = __builtin_fma(p, u, 2.291554141476e-09);
  p = __builtin_fma(p, u, 1.941736411911e-07);
  p = __builtin_fma(p, u, 1.178789476406e-05);
  p = __builtin_fma(p, u, 0.0004792827432653);
  p = __builtin_fma(p, u, 0.01178569531695);
  p = __builtin_fma(p, u, 0.1471797367221);
  return __builtin_fma(p, u, 0.6358617281561);
}
INLINE double bessel_k1_factor(double u) {
  double p = 8.913255649539e-08;
  p = __builtin_fma(p, u, -2.138861066102e-07);
  p = __builtin_fma(p, u, 2.706524874246e-07);
  p = __builtin_fma(p, u, -7.895308388985e-07);
  p = __builtin_fma(p, u, 2.758930995251e-06);
  p = __builtin_fma(p, u, -9.025657352608e-06);
  p = __builtin_fma(p, u, 3.283686692217e-05);
  p = __builtin_fma(p, u, -0.0001395746364816);
  p = __builtin_fma(p, u, 0.0007357247644748);
  p = __builtin_fma(p, u, -0.005566731236065);
  p = __builtin_fma(p, u, 0.1033497377454);
  return __builtin_fma(p, u, 1.36315189039);
}
INLINE double log_of_half(double x) {
  double f = log_fraction(x);
  return log_sum(log_exponent(x) - 1, f, f / (2 + f));
}
/* times exp(x) where `scaled` */
INLINE float bessel_k_f32(double x, int n, int scaled) {
  double u = x * x / 2 - 1, w = 1 / x, v = 4 * w - 1, log = log_of_half(x), e = exp(scaled ? x : -x);
  double near = n ? x * (log * bessel_k1_growth(u) + bessel_k1_rest(u)) + w
                  : bessel_k0_rest(u) - log * bessel_k0_growth(u);
  double far = (n ? bessel_k1_factor(v) : bessel_k0_factor(v)) * __builtin_sqrt(w);
  double y = x <= 2 ? (scaled ? near * e : near) : (scaled ? far : far * e);
  y = x == 0 ? INFINITY : y;
  return (float)(x < 0 ? NAN : y);
}
INLINE float special_modified_bessel_k0_f32(float x) { return bessel_k_f32((double)x, 0, 0); }
INLINE float special_modified_bessel_k1_f32(float x) { return bessel_k_f32((double)x, 1, 0); }
INLINE float special_scaled_modified_bessel_k0_f32(float x) { return bessel_k_f32((double)x, 0, 1); }
INLINE float special_scaled_modified_bessel_k1_f32(float x) { return bessel_k_f32((double)x, 1, 1); }

/* The normal distribution's quantile: the inverse error function of y = 2 p - 1, or in the tails a
 * polynomial of the root of w = -log(1 - y^2) */
INLINE double quantile_of_tail(double u) {
  double p = -1.469073512167e-06;
  p = __builtin_fma(p, u, 4.384848066731e-06);
  p = __builtin_fma(p, u, -8.872872505522e-06);
  p = __builtin_fma(p, u, 2.262681351968e-05);
  p = __builtin_fma(p, u, -5.129350117281e-05);
  p = __builtin_fma(p, u, 6.109450747617e-05);
  p = __builtin_fma(p, u, 0.0002471131271553);
  p = __builtin_fma(p, u, -0.002770596224591);
  p = __builtin_fma(p, u, 2.418712932534);
  return __builtin_fma(p, u, 7.675573290228);
}
INLINE float special_ndtri_f32(float p) {
  double y = 2 * (double)p - 1, t = 4 * (double)p * (1 - (double)p), f = log_fraction(t);
  double w = -log_sum(log_exponent(t), f, f / (2 + f));
  double far = quantile_of_tail((__builtin_sqrt(w) - 7.8) * (1 / 2.4));
  double x = w < 30 ? y * erfinv_factor(w) : p < 0.5f ? -far : far;
  x = p == 0 ? -INFINITY : p == 1 ? INFINITY : x * 1.41421356237309504880;
  return (p >= 0) & (p <= 1) ? (float)x : NAN;
}

/* Bessel functions of float32. Of |x| <= 8: polynomials of u = x^2 / 32 - 1, those of Y beside
 * logarithm and pole. Of others a modulus times sine or cosine of x less a multiple of pi / 4 and a
 * small phase; both are polynomials of w = (8 / x)^2. */
INLINE double bessel_j0_near(double u) {
  double p = -7.958838623947e-09;
  p = __builtin_fma(p, u, 1.60741275497e-07);
  p = __builtin_fma(p, u, -2.717689389585e-06);
  p = __builtin_fma(p, u, 3.847157376669e-05);
  p = __builtin_fma(p, u, -0.0004435459632275);
  p = __builtin_fma(p, u, 0.00405808009691);
  p = __builtin_fma(p, u, -0.0284727185966);
  p = __builtin_fma(p, u, 0.1459888481798);
  p = __builtin_fma(p, u, -0.5074680458495);
  p = __builtin_fma(p, u, 1.038379461208);
  p = __builtin_fma(p, u, -0.8080888076695);
  p = __builtin_fma(p, u, -0.6484692830912);
  p = __builtin_fma(p, u, 0.9303012472959);
  return __builtin_fma(p, u, 0.04582966485985);
}
INLINE double bessel_y0_near(double u) {
  double p = 1.648511929727e-08;
  p = __builtin_fma(p, u, -3.243530208056e-07);
  p = __builtin_fma(p, u, 5.321189224111e-06);
  p = __builtin_fma(p, u, -7.279197530056e-05);
  p = __builtin_fma(p, u, 0.0008061586943168);
  p = __builtin_fma(p, u, -0.007025743406091);
  p = __builtin_fma(p, u, 0.04636704765045);
  p = __builtin_fma(p, u, -0.2189574701394);
  p = __builtin_fma(p, u, 0.6721770783483);
  p = __builtin_fma(p, u, -1.077547733959);
  p = __builtin_fma(p, u, 0.1441263236927);
  p = __builtin_fma(p, u, 1.647096478883);
  p = __builtin_fma(p, u, -0.8284358903605);
  return __builtin_fma(p, u, -0.3822506544595);
}
INLINE double bessel_j1_near(double u) {
  double p = -2.957029802951e-10;
  p = __builtin_fma(p, u, 6.471995824581e-09);
  p = __builtin_fma(p, u, -1.19668891473e-07);
  p = __builtin_fma(p, u, 1.868396497184e-06);
  p = __builtin_fma(p, u, -2.40457499737e-05);
  p = __builtin_fma(p, u, 0.0002494946196132);
  p = __builtin_fma(p, u, -0.002029039494111);
  p = __builtin_fma(p, u, 0.01245681437888);
  p = __builtin_fma(p, u, -0.05474581821292);
  p = __builtin_fma(p, u, 0.1585837643294);
  p = __builtin_fma(p, u, -0.2595948652859);
  p = __builtin_fma(p, u, 0.1515166514379);
  p = __builtin_fma(p, u, 0.0810586603859);
  return __builtin_fma(p, u, -0.05814382795599);
}
INLINE double bessel_y1_near(double u) {
  double p = 6.200348033071e-10;
  p = __builtin_fma(p, u, -1.324062928675e-08);
  p = __builtin_fma(p, u, 2.380450884431e-07);
  p = __builtin_fma(p, u, -3.600879737688e-06);
  p = __builtin_fma(p, u, 4.467433300087e-05);
  p = __builtin_fma(p, u, -0.0004438174254522);
  p = __builtin_fma(p, u, 0.003422490738913);
  p = __builtin_fma(p, u, -0.01962875680441);
  p = __builtin_fma(p, u, 0.07854786922259);
  p = __builtin_fma(p, u, -0.1963983986041);
  p = __builtin_fma(p, u, 0.2350720920667);
  p = __builtin_fma(p, u, 0.02336757172129);
  p = __builtin_fma(p, u, -0.2433774307919);
  return __builtin_fma(p, u, 0.07075985882118);
}
INLINE double bessel_0_modulus(double w) {
  double p = -3.870997059157e-08;
  p = __builtin_fma(p, w, 2.968002765588e-07);
  p = __builtin_fma(p, w, -2.047150433251e-06);
  p = __builtin_fma(p, w, 2.526717493816e-05);
  p = __builtin_fma(p, w, -0.0009765620682899);
  return __builtin_fma(p, w, 0.999999999994);
}
INLINE double bessel_0_phase(double w) {
  double p = 1.657576347941e-07;
  p = __builtin_fma(p, w, -1.12721058934e-06);
  p = __builtin_fma(p, w, 6.127002142498e-06);
  p = __builtin_fma(p, w, -5.11381500853e-05);
  p = __builtin_fma(p, w, 0.001017250413973);
  return __builtin_fma(p, w, -0.1249999999698);
}
INLINE double bessel_1_modulus(double w) {
  double p = 4.978207766767e-08;
  p = __builtin_fma(p, w, -3.979470426849e-07);
  p = __builtin_fma(p, w, 3.042929719075e-06);
  p = __builtin_fma(p, w, -4.720048755132e-05);
  p = __builtin_fma(p, w, 0.002929686968357);
  return __builtin_fma(p, w, 1.000000000007);
}
INLINE double bessel_1_phase(double w) {
  double p = -2.118647178925e-07;
  p = __builtin_fma(p, w, 1.49422548924e-06);
  p = __builtin_fma(p, w, -8.889761253555e-06);
  p = __builtin_fma(p, w, 9.051894749963e-05);
  p = __builtin_fma(p, w, -0.00256347387728);
  return __builtin_fma(p, w, 0.374999999963);
}
/* The part of order n beyond 8: `turned` by a quarter it is Y's. Of sine and cosine of the same number
 * gcc makes one call, which there are no vectors of: cos(|x|) is cos(x) to it, and sin(|x|) is not. */
INLINE double bessel_far(double x, int n, int turned) {
  double a = __builtin_fabs(x), v = 1 / a, w = 64 * (v * v);
  double t = v * (n ? bessel_1_phase(w) : bessel_0_phase(w)), z = t * t;
  double cosine = 1 - z * (0.5 - z * (1.0 / 24)), sine = t * (1 - z * (1.0 / 6));
  double s = sin(a), c = cos(a), sum = s + c, difference = s - c;
  /* sqrt(2) times cosine and sine of a - (2 n + 1) pi / 4 */
  double real = n ? difference : sum, imaginary = n ? -sum : difference;
  double wave = turned ? imaginary * cosine + real * sine : real * cosine - imaginary * sine;
  return __builtin_sqrt(v * (1 / PI)) * (n ? bessel_1_modulus(w) : bessel_0_modulus(w)) * wave;
}
INLINE float bessel_j_f32(double x, int n) {
  double u = x * x / 32 - 1, far = bessel_far(x, n, 0);
  far = n && x < 0 ? -far : far;
  return (float)(__builtin_fabs(x) <= 8 ? (n ? x * bessel_j1_near(u) : bessel_j0_near(u)) : far);
}
INLINE float bessel_y_f32(double x, int n) {
  double u = x * x / 32 - 1, far = bessel_far(x, n, 1);
  double log = log_of_half(x) + 0.69314718055994530942;
  double near = n ? x * (2 / PI * log * bessel_j1_near(u) + bessel_y1_near(u)) - 2 / PI / x
                  : 2 / PI * log * bessel_j0_near(u) + bessel_y0_near(u);
  double y = x <= 8 ? near : far;
  y = x == 0 ? -INFINITY : y;
  return (float)(x < 0 ? NAN : y);
}
INLINE float special_bessel_j0_f32(float x) { return bessel_j_f32((double)x, 0); }
INLINE float special_bessel_j1_f32(float x) { return bessel_j_f32((double)x, 1); }
INLINE float special_bessel_y0_f32(float x) { return bessel_y_f32((double)x, 0); }
INLINE float special_bessel_y1_f32(float x) { return bessel_y_f32((double)x, 1); }
