// Convolutions, the delta rule, streams and weighted sums, a row or a head at a time. Included by kernels.cpp only.
#pragma once

#include <cmath>
#include <cstdint>

#include "pointwise.hpp"

namespace dlab {
namespace {

// Chunks of kChunk products in sequence, the chunk sums added in order, as in every product.
float dot(const float* a, const float* b, int64_t n) {
  float total = 0.0f;
  for (int64_t k = 0; k < n; k += kChunk) {
    const int64_t end = n - k < kChunk ? n : k + kChunk;
    float sum = 0.0f;
    for (int64_t i = k; i < end; ++i) sum += a[i] * b[i];
    total += sum;
  }
  return total;
}

// out[d] = sum over k of state[k][d] q[k]; sums of chunks as in `dot`.
void delta_read(const float* state, const float* q, int64_t depth, int64_t n, float* sum, float* out) {
  for (int64_t d = 0; d < n; ++d) out[d] = 0.0f;
  for (int64_t k = 0; k < depth; k += kChunk) {
    const int64_t end = depth - k < kChunk ? depth : k + kChunk;
    for (int64_t d = 0; d < n; ++d) sum[d] = 0.0f;
    for (int64_t i = k; i < end; ++i) {
      const float* row = state + i * n;
      for (int64_t d = 0; d < n; ++d) sum[d] += row[d] * q[i];
    }
    for (int64_t d = 0; d < n; ++d) out[d] += sum[d];
  }
}

// One row of the delta rule for one head; scratch: 2n values.
void delta_step(const float* before, const float* key, const float* v, float decay, float beta, int64_t depth, int64_t n, float* scratch,
                float* after) {
  const float kept = expf(decay);
  for (int64_t i = 0; i < depth * n; ++i) after[i] = before[i] * kept;
  float* step = scratch;
  delta_read(after, key, depth, n, scratch + n, step);
  for (int64_t d = 0; d < n; ++d) step[d] = (v[d] - step[d]) * beta;
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t d = 0; d < n; ++d) after[k * n + d] += key[k] * step[d];
}

// y[c] = sum over k of rows[k][c] w[c][k].
void short_conv(const float* const* rows, const float* w, int64_t taps, int64_t n, float* y) {
  for (int64_t c = 0; c < n; ++c) {
    float sum = 0.0f;
    for (int64_t k = 0; k < taps; ++k) sum += rows[k][c] * w[c * taps + k];
    y[c] = sum;
  }
}

// y[c] = sum over j of (base[j][c] + made[j][group of c]) rows[j][c]; a row before the block is nullptr and adds nothing.
void dynamic_conv(const float* const* rows, const float* base, const float* made, int64_t taps, int64_t groups, int64_t n, float* y) {
  const int64_t size = n / groups;
  for (int64_t c = 0; c < n; ++c) y[c] = 0.0f;
  for (int64_t j = 0; j < taps && rows[j]; ++j)
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t c = g * size; c < (g + 1) * size; ++c) y[c] += (base[j * n + c] + made[j * groups + g]) * rows[j][c];
}

void mean(const float* x, int64_t stride, int64_t count, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = 0.0f;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < n; ++i) y[i] += x[r * stride + i];
  for (int64_t i = 0; i < n; ++i) y[i] /= static_cast<float>(count);
}

void weighted_sum(const float* x, const float* weights, int64_t count, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = 0.0f;
  for (int64_t j = 0; j < count; ++j)
    for (int64_t i = 0; i < n; ++i) y[i] += weights[j] * x[j * n + i];
}

void silu(const float* x, float scale, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = x[i] * scale;
    y[i] = g * sigmoid(g);
  }
}

void squash(const float* x, float scale, float gain, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gain * sigmoid(x[i] * scale);
}

void decay(const float* a, const float* a_log, const float* dt_bias, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = -expf(a_log[i]) * softplus(a[i] + dt_bias[i]);
}

void l2_norm(const float* x, double eps, float scale, int64_t n, float* y) {
  const float inverse = static_cast<float>(1.0 / sqrt(sum_of_squares(x, n) + eps));
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] * inverse) * scale;
}

void hc_read(const float* x, const float* g, int64_t streams, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = 0.0f;
  for (int64_t s = 0; s < streams; ++s)
    for (int64_t i = s * n; i < (s + 1) * n; ++i) y[i - s * n] += x[i] * sigmoid(g[i]);
  for (int64_t i = 0; i < n; ++i) y[i] /= static_cast<float>(streams);
}

void hc_write(const float* x, const float* v, const float* inject, int64_t streams, int64_t n, float* y) {
  for (int64_t s = 0; s < streams; ++s)
    for (int64_t i = 0; i < n; ++i) y[s * n + i] = x[s * n + i] + inject[s] * v[i];
}

constexpr float kSmallestAsk = 1e-6f;

float ple_gate(const float* key, const float* query, int64_t n) {
  const float d = dot(key, query, n) / static_cast<float>(sqrt(static_cast<double>(n)));
  const float size = fabsf(d);
  const float root = sqrtf(size < kSmallestAsk ? kSmallestAsk : size);
  return d == 0.0f ? 0.0f : copysignf(root, d);
}

void product_of(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

void markov_state(const float* state, const float* joint, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float kept = sigmoid(joint[i]);
    y[i] = kept * state[i] + (1.0f - kept) * tanhf(joint[n + i]);
  }
}

void hyperbolic(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = tanhf(x[i]);
}

}  // namespace
}  // namespace dlab
