// Operations by name on single values and on streams side by side.
#include "each.h"
#include "reduce.h"
#include "sizes.h"

constant constexpr int kThreads = 256, kSimdgroups = kThreads / 32;
constant constexpr float kSmallestAsk = 1e-6f;  // of ple_gate, before its root

kernel void squash(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant sizes::Squash& n [[buffer(2)]], THIS_THREAD) {
  EACH(i, n.count) y[i] = n.gain * sigmoid(x[i] * n.scale);
}

kernel void silu(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant sizes::Squash& n [[buffer(2)]], THIS_THREAD) {
  EACH(i, n.count) {
    const float g = x[i] * n.scale;
    y[i] = g * sigmoid(g);
  }
}

kernel void decay(device const float* a [[buffer(0)]], device const float* a_log [[buffer(1)]], device const float* dt_bias [[buffer(2)]],
                  device float* y [[buffer(3)]], constant sizes::Decay& n [[buffer(4)]], THIS_THREAD) {
  EACH(i, n.count) y[i] = -precise::exp(a_log[i % n.heads]) * softplus(a[i] + dt_bias[i % n.heads]);
}

// A threadgroup per vector; the sum of squares in the order lanes:256.
kernel void l2_norm(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant sizes::L2Norm& n [[buffer(2)]],
                    uint vector [[threadgroup_position_in_grid]], ushort thread_index [[thread_index_in_threadgroup]],
                    ushort lane [[thread_index_in_simdgroup]], ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[kSimdgroups];
  const long start = vector * n.width;
  float sum = 0.0f;
  for (long i = thread_index; i < n.width; i += kThreads) sum = fma(x[start + i], x[start + i], sum);
  const float root = precise::sqrt(sum_of_threadgroup(sum, parts, lane, simdgroup, kSimdgroups) + n.eps);
  for (long i = thread_index; i < n.width; i += kThreads) y[start + i] = x[start + i] / root * n.scale;
}

kernel void hc_read(device const float* x [[buffer(0)]], device const float* g [[buffer(1)]], device float* y [[buffer(2)]],
                    constant sizes::Streams& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.rows * n.n) {
    const long start = i / n.n * n.streams * n.n + i % n.n;
    float sum = 0.0f;
    for (long s = 0; s < n.streams; ++s) sum = fma(x[start + s * n.n], sigmoid(g[start + s * n.n]), sum);
    y[i] = sum / float(n.streams);
  }
}

kernel void hc_write(device const float* x [[buffer(0)]], device const float* v [[buffer(1)]], device const float* inject [[buffer(2)]],
                     device float* y [[buffer(3)]], constant sizes::Streams& n [[buffer(4)]], THIS_THREAD) {
  EACH(i, n.rows * n.streams * n.n) {
    const long stream = i / n.n, row = stream / n.streams;
    y[i] = fma(inject[stream], v[row * n.n + i % n.n], x[i]);
  }
}

// A SIMD group per vector.
kernel void ple_gate(device const float* key [[buffer(0)]], device const float* query [[buffer(1)]], device float* y [[buffer(2)]],
                     constant sizes::PleGate& n [[buffer(3)]], uint vector [[threadgroup_position_in_grid]],
                     ushort lane [[thread_index_in_simdgroup]]) {
  const long start = vector * n.n;
  const Products products = {key + start, query + start, 1, 1};
  const float d = sum_over_lanes(lane, n.n, products) / n.root, size = fabs(d);
  const float root = precise::sqrt(size < kSmallestAsk ? kSmallestAsk : size);
  if (lane == 0) y[vector] = d == 0.0f ? 0.0f : copysign(root, d);
}

kernel void stream_gate(device const float* x [[buffer(0)]], device const float* g [[buffer(1)]], device float* y [[buffer(2)]],
                        constant sizes::Streams& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.rows * n.streams * n.n) {
    const long stream = i / n.n, row = stream / n.streams;
    y[i] = x[row * n.n + i % n.n] * sigmoid(g[stream]);
  }
}

kernel void markov_state(device const float* state [[buffer(0)]], device const float* joint [[buffer(1)]], device float* y [[buffer(2)]],
                         constant sizes::Streams& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.rows * n.n) {
    const long own = i / n.n * 3 * n.n + i % n.n;
    const float kept = sigmoid(joint[own]);
    y[i] = fma(kept, state[i], (1.0f - kept) * precise::tanh(joint[own + n.n]));
  }
}

kernel void markov_output(device const float* joint [[buffer(0)]], device float* y [[buffer(1)]], constant sizes::Streams& n [[buffer(2)]],
                          THIS_THREAD) {
  EACH(i, n.rows * n.n) y[i] = precise::tanh(joint[i / n.n * 3 * n.n + 2 * n.n + i % n.n]);
}
