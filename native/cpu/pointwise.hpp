// Norms, rotary embedding and element-wise operations on one row. Included by kernels.cpp only.
#pragma once

#include <cmath>
#include <cstdint>

namespace dlab {
namespace {

double sum_of_squares(const float* x, int64_t n) {
  double partial[8] = {};
  for (int64_t i = 0; i < n; ++i) partial[i % 8] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0.0;
  for (double p : partial) sum += p;
  return sum;
}

void rms_norm(const float* x, const float* w, float offset, double eps, int64_t width, float* y) {
  const float inverse = static_cast<float>(1.0 / sqrt(sum_of_squares(x, width) / static_cast<double>(width) + eps));
  if (w) {
    for (int64_t i = 0; i < width; ++i) y[i] = (x[i] * inverse) * (w[i] + offset);
  } else {
    for (int64_t i = 0; i < width; ++i) y[i] = x[i] * inverse;
  }
}

void rope(const float* x, const float* table, int64_t rot, int64_t width, bool interleaved, float* y) {
  const int64_t pairs = rot / 2, step = interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t low = interleaved ? 2 * i : i;
    const float a = x[low], b = x[low + step], c = table[2 * i], s = table[2 * i + 1];
    y[low] = a * c - b * s;
    y[low + step] = b * c + a * s;
  }
  for (int64_t i = rot; i < width; ++i) y[i] = x[i];
}

// 1 / (1 + exp(-x)) without overflow, relatively accurate on both sides.
inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// log(1 + exp(x)) without overflow.
inline float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))); }

void gate(const float* x, const float* g, bool one_logit, bool use_softplus, int64_t n, float* y) {
  if (one_logit) {
    const float factor = use_softplus ? softplus(g[0]) : sigmoid(g[0]);
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (use_softplus ? softplus(g[i]) : sigmoid(g[i]));
  }
}

// gelu-tanh written as x * sigmoid(2z), which is the same function without the cancellation in 1 + tanh(z).
inline float gelu_tanh(float x) {
  const float z = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * sigmoid(2.0f * z);
}

void swiglu(const float* gate_row, const float* up, bool gelu, int64_t n, float* y) {
  if (gelu) {
    for (int64_t i = 0; i < n; ++i) y[i] = gelu_tanh(gate_row[i]) * up[i];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (gate_row[i] * sigmoid(gate_row[i])) * up[i];
  }
}

void add(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void multiply(const float* x, float factor, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

void softmax(const float* x, float scale, int64_t n, float* y) {
  float top = -INFINITY;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = x[i] * scale;
    if (y[i] > top) top = y[i];
  }
  double total = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = expf(y[i] - top);
    total += static_cast<double>(y[i]);
  }
  const float denominator = static_cast<float>(total);
  for (int64_t i = 0; i < n; ++i) y[i] /= denominator;
}

void softcap(const float* x, float scale, float cap, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * scale;
    y[i] = cap > 0.0f ? cap * tanhf(scaled / cap) : scaled;
  }
}

}  // namespace
}  // namespace dlab
