/* The example engine with a product that sums as the environment says: "KERNEL" names one of the cases of `dot`. */
#define dlab_linear plain_linear
#include "engine.c"
#undef dlab_linear

static int is(const char* name) {
  const char* chosen = getenv("KERNEL");
  return chosen && !strcmp(chosen, name);
}

/* v to p bits, by `toward` zero or to nearest even; exponents from least on. */
static double cut(double v, int p, int least, int toward) {
  if (v == 0 || !isfinite(v)) return v;
  int e = ilogb(v);
  const double spacing = ldexp(1, (e < least ? least : e) - p + 1);
  return (toward ? trunc(v / spacing) : rint(v / spacing)) * spacing;
}
static double half(double v) {
  const double r = cut(v, 11, -14, 0);
  return fabs(r) > 65504 ? copysign(INFINITY, r) : r;
}

static float chain(const float* p, int64_t n) {
  float s = p[0];
  for (int64_t k = 1; k < n; k++) s += p[k];
  return s;
}
static float reversed(const float* p, int64_t n) {
  float s = p[n - 1];
  for (int64_t k = n - 2; k >= 0; k--) s += p[k];
  return s;
}
static float balanced(const float* p, int64_t n) {
  float t[4096];
  memcpy(t, p, (size_t)n * sizeof *t);
  for (; n > 1; n = (n + 1) / 2)
    for (int64_t i = 0; i < (n + 1) / 2; i++) t[i] = 2 * i + 1 < n ? t[2 * i] + t[2 * i + 1] : t[2 * i];
  return t[0];
}
static float parts(const float* p, int64_t n, int64_t step) {
  float s = 0;
  for (int64_t k = 0; k < n; k += step) s += chain(p + k, n - k < step ? n - k : step);
  return s;
}

/* Steps of g products beside the sum so far: each addend cut `extra` bits below the last bit of the largest, their sum to 24 bits. */
static float matrix_unit(const float* p, int64_t n, int g, int extra, int toward) {
  double s = 0;
  for (int64_t k = 0; k < n; k += g) {
    const int64_t end = k + g < n ? k + g : n;
    double largest = fabs(s), sum = 0;
    for (int64_t i = k; i < end; i++) largest = fmax(largest, fabs((double)p[i]));
    if (largest == 0) continue;
    const double last = ldexp(1, ilogb(largest) - 23 - extra);
    for (int64_t i = k - 1; i < end; i++) {
      sum += trunc((i < k ? s : p[i]) / last) * last;
    }
    s = cut(sum, 24, -126, toward);
  }
  return (float)s;
}

static unsigned state = 1;
static float shuffled(const float* p, int64_t n) {
  state = state * 1664525u + 1013904223u;
  return state >> 31 ? chain(p, n) : reversed(p, n);
}

static float dot(const float* x, const float* w, int64_t n, int64_t m, int64_t rows, int64_t column, int64_t columns) {
  float p[4096], in[4096];
  for (int64_t k = 0; k < n; k++) in[k] = is("bf16 inputs") ? (float)cut(x[k], 8, -126, 0) : is("f16 inputs") ? (float)half(x[k]) : x[k];
  for (int64_t k = 0; k < n && is("q8 inputs"); k += 32) {
    float top = 0, scale;
    for (int64_t i = k; i < n && i < k + 32; i++) top = fmaxf(top, fabsf(x[i]));
    scale = top / 127;
    for (int64_t i = k; i < n && i < k + 32; i++) in[i] = scale > 0 ? rintf(x[i] / scale) : 0;
    float sum = 0;
    for (int64_t i = k; i < n && i < k + 32; i++) sum += in[i] * w[i];
    p[k / 32] = sum * scale;
  }
  if (is("q8 inputs")) return chain(p, (n + 31) / 32);
  for (int64_t k = 0; k < n; k++) p[k] = in[k] * w[k];

  if (is("fma")) {
    float s = 0;
    for (int64_t k = 0; k < n; k++) s = fmaf(x[k], w[k], s);
    return s;
  }
  if (is("double")) {
    double s = 0;
    for (int64_t k = 0; k < n; k++) s += (double)x[k] * w[k];
    return (float)s;
  }
  if (is("f16 accumulator") || is("bf16 accumulator") || is("cut accumulator")) {
    double s = 0;
    for (int64_t k = 0; k < n; k++)
      s = is("f16 accumulator") ? half(s + p[k]) : is("bf16 accumulator") ? cut(s + p[k], 8, -126, 0) : cut(s + p[k], 24, -126, 1);
    return (float)s;
  }
  if (is("f16 in chunks")) {
    float s = 0;
    for (int64_t k = 0; k < n; k += 8) {
      double part = 0;
      for (int64_t i = k; i < n && i < k + 8; i++) part = half(part + p[i]);
      s += (float)part;
    }
    return s;
  }
  if (is("bf16 result")) return (float)cut(chain(p, n), 8, -126, 0);
  if (is("matrix unit")) return matrix_unit(p, n, 8, 2, 1);
  if (is("matrix unit without spare bits")) return matrix_unit(p, n, 4, 0, 1);
  if (is("wide matrix unit")) return matrix_unit(p, n, 4, 24, 0);
  if (is("not repeatable")) return shuffled(p, n);
  if (is("pairwise") || (is("pairwise alone") && rows == 1)) return balanced(p, n);
  if (is("reversed") || (is("last column reversed") && column == columns - 1) || (is("row 2 reversed") && m == 2)) return reversed(p, n);
  if (is("split from four rows") && rows >= 4) return parts(p, n, (n + 3) / 4);
  if (is("fma from four rows") && rows >= 4) {
    float s = 0;
    for (int64_t k = 0; k < n; k++) s = fmaf(x[k], w[k], s);
    return s;
  }
  if (is("f16 from four rows") && rows >= 4) {
    double s = 0;
    for (int64_t k = 0; k < n; k++) s = half(s + p[k]);
    return (float)s;
  }
  return chain(p, n);
}

int32_t dlab_linear(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, const dlab_tensor* bias, dlab_tensor* y) {
  (void)ctx, (void)bias;
  if (!is_matrix(w)) return fail(DLAB_E_UNSUPPORTED, "linear: w must be a dense f32 matrix");
  if (is("dies") && x->shape[0] > 2) abort();
  for (int64_t m = 0; m < x->shape[0]; m++)
    for (int64_t n = 0; n < w->shape[0]; n++)
      row(y, m)[n] = dot(row(x, m), row(w, n), x->shape[1], m, x->shape[0], n, w->shape[0]);
  return DLAB_OK;
}
