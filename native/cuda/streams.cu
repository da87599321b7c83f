// Operations by name on single values and on streams side by side.
#include "each.cuh"
#include "gpu/kernels.hpp"
#include "reduce.cuh"

namespace dlab::gpu {
namespace {

constexpr int kThreads = 256;
constexpr float kSmallestAsk = 1e-6f;  // of ple_gate, before its root

__global__ void squash_kernel(const float* __restrict__ x, int64_t n, float scale, float gain, float* __restrict__ y) {
  DLAB_EACH(i, n) y[i] = gain * sigmoid(x[i] * scale);
}

__global__ void silu_kernel(const float* __restrict__ x, int64_t n, float scale, float* __restrict__ y) {
  DLAB_EACH(i, n) {
    const float g = x[i] * scale;
    y[i] = g * sigmoid(g);
  }
}

__global__ void decay_kernel(const float* __restrict__ a, int64_t n, int64_t heads, const float* __restrict__ a_log,
                             const float* __restrict__ dt_bias, float* __restrict__ y) {
  DLAB_EACH(i, n) y[i] = -expf(a_log[i % heads]) * softplus(a[i] + dt_bias[i % heads]);
}

// One block per vector; the sum of squares in f64.
__global__ void __launch_bounds__(kThreads) l2_norm_kernel(const float* __restrict__ x, int64_t n, double eps, float scale,
                                                          float* __restrict__ y) {
  const int64_t start = blockIdx.x * n;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const double v = x[start + i];
    sum += v * v;
  }
  const auto inverse = static_cast<float>(1.0 / sqrt(over_block<kThreads>(sum, Sum{}) + eps));
  for (int64_t i = threadIdx.x; i < n; i += kThreads) y[start + i] = (x[start + i] * inverse) * scale;
}

__global__ void hc_read_kernel(const float* __restrict__ x, const float* __restrict__ g, int64_t rows, int64_t streams, int64_t n,
                               float* __restrict__ y) {
  DLAB_EACH(i, rows * n) {
    const int64_t start = i / n * streams * n + i % n;
    float sum = 0.0f;
    for (int64_t s = 0; s < streams; ++s) sum = fmaf(x[start + s * n], sigmoid(g[start + s * n]), sum);
    y[i] = sum / static_cast<float>(streams);
  }
}

__global__ void hc_write_kernel(const float* __restrict__ x, const float* __restrict__ v, const float* __restrict__ inject, int64_t rows,
                                int64_t streams, int64_t n, float* __restrict__ y) {
  DLAB_EACH(i, rows * streams * n) {
    const int64_t stream = i / n, row = stream / streams;
    y[i] = fmaf(inject[stream], v[row * n + i % n], x[i]);
  }
}

// A warp per vector.
__global__ void __launch_bounds__(32) ple_gate_kernel(const float* __restrict__ key, const float* __restrict__ query, int64_t n,
                                                     float* __restrict__ y) {
  const int64_t start = blockIdx.x * n;
  const int lane = threadIdx.x;
  const float dot = sum_over_lanes(lane, n, [&](int64_t i, float sum) { return fmaf(key[start + i], query[start + i], sum); });
  const float d = dot / static_cast<float>(sqrt(static_cast<double>(n)));
  const float size = fabsf(d), root = sqrtf(size < kSmallestAsk ? kSmallestAsk : size);
  if (lane == 0) y[blockIdx.x] = d == 0.0f ? 0.0f : copysignf(root, d);
}

__global__ void stream_gate_kernel(const float* __restrict__ x, const float* __restrict__ g, int64_t rows, int64_t streams, int64_t n,
                                   float* __restrict__ y) {
  DLAB_EACH(i, rows * streams * n) {
    const int64_t stream = i / n, row = stream / streams;
    y[i] = x[row * n + i % n] * sigmoid(g[stream]);
  }
}

__global__ void markov_state_kernel(const float* __restrict__ state, const float* __restrict__ joint, int64_t rows, int64_t n,
                                    float* __restrict__ y) {
  DLAB_EACH(i, rows * n) {
    const float* own = joint + i / n * 3 * n + i % n;
    const float kept = sigmoid(own[0]);
    y[i] = fmaf(kept, state[i], (1.0f - kept) * tanhf(own[n]));
  }
}

__global__ void markov_output_kernel(const float* __restrict__ joint, int64_t rows, int64_t n, float* __restrict__ y) {
  DLAB_EACH(i, rows * n) y[i] = tanhf(joint[i / n * 3 * n + 2 * n + i % n]);
}

}  // namespace

void squash(StreamHandle stream, const float* x, int64_t n, float scale, float gain, float* y) {
  if (n == 0) return;
  squash_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(x, n, scale, gain, y);
  check_launch("squash");
}

void silu(StreamHandle stream, const float* x, int64_t n, float scale, float* y) {
  if (n == 0) return;
  silu_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(x, n, scale, y);
  check_launch("silu");
}

void decay(StreamHandle stream, const float* a, int64_t rows, int64_t heads, const float* a_log, const float* dt_bias, float* y) {
  const int64_t n = rows * heads;
  if (n == 0) return;
  decay_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(a, n, heads, a_log, dt_bias, y);
  check_launch("decay");
}

void l2_norm(StreamHandle stream, const float* x, int64_t vectors, int64_t n, double eps, float scale, float* y) {
  if (vectors == 0 || n == 0) return;
  l2_norm_kernel<<<static_cast<unsigned>(vectors), kThreads, 0, stream_of(stream)>>>(x, n, eps, scale, y);
  check_launch("l2_norm");
}

void hc_read(StreamHandle stream, const float* x, const float* g, int64_t rows, int64_t streams, int64_t n, float* y) {
  if (rows * n == 0) return;
  hc_read_kernel<<<each_blocks(rows * n), kEachThreads, 0, stream_of(stream)>>>(x, g, rows, streams, n, y);
  check_launch("hc_read");
}

void hc_write(StreamHandle stream, const float* x, const float* v, const float* inject, int64_t rows, int64_t streams, int64_t n, float* y) {
  if (rows * streams * n == 0) return;
  hc_write_kernel<<<each_blocks(rows * streams * n), kEachThreads, 0, stream_of(stream)>>>(x, v, inject, rows, streams, n, y);
  check_launch("hc_write");
}

void ple_gate(StreamHandle stream, const float* key, const float* query, int64_t vectors, int64_t n, float* y) {
  if (vectors == 0) return;
  ple_gate_kernel<<<static_cast<unsigned>(vectors), 32, 0, stream_of(stream)>>>(key, query, n, y);
  check_launch("ple_gate");
}

void stream_gate(StreamHandle stream, const float* x, const float* g, int64_t rows, int64_t streams, int64_t n, float* y) {
  if (rows * streams * n == 0) return;
  stream_gate_kernel<<<each_blocks(rows * streams * n), kEachThreads, 0, stream_of(stream)>>>(x, g, rows, streams, n, y);
  check_launch("stream_gate");
}

void markov_state(StreamHandle stream, const float* state, const float* joint, int64_t rows, int64_t n, float* y) {
  if (rows * n == 0) return;
  markov_state_kernel<<<each_blocks(rows * n), kEachThreads, 0, stream_of(stream)>>>(state, joint, rows, n, y);
  check_launch("markov_state");
}

void markov_output(StreamHandle stream, const float* joint, int64_t rows, int64_t n, float* y) {
  if (rows * n == 0) return;
  markov_output_kernel<<<each_blocks(rows * n), kEachThreads, 0, stream_of(stream)>>>(joint, rows, n, y);
  check_launch("markov_output");
}

}  // namespace dlab::gpu
