// Operations whose rows follow from the rows before them.
#include "each.cuh"
#include "gpu/kernels.hpp"
#include "reduce.cuh"

namespace dlab::gpu {
namespace {

__global__ void short_conv_kernel(const float* __restrict__ x, const float* __restrict__ history, const float* __restrict__ w, int64_t rows,
                                  int64_t channels, int64_t taps, int64_t dilation, float* __restrict__ y) {
  DLAB_EACH(i, rows * channels) {
    const int64_t row = i / channels, c = i % channels, reach = (taps - 1) * dilation;
    y[i] = sum_in_lanes(taps, [&](int64_t k, float sum) {
      const int64_t at = row - dilation * (taps - 1 - k);
      return fmaf(at < 0 ? history[(reach + at) * channels + c] : x[at * channels + c], w[c * taps + k], sum);
    });
  }
}

// The taps in sequence, from the row itself back; rows before the block are 0.
__global__ void dynamic_conv_kernel(const float* __restrict__ x, const float* __restrict__ kernel, const float* __restrict__ base,
                                    int64_t rows, int64_t n, int64_t taps, int64_t groups, int64_t side, float* __restrict__ y) {
  DLAB_EACH(i, rows * n) {
    const int64_t row = i / n, c = i % n;
    const float* made = kernel + (row * 2 + side) * taps * groups + c / (n / groups);
    const float* fixed = base + side * taps * n + c;
    float sum = 0.0f;
    for (int64_t j = 0; j < taps && j <= row; ++j) sum = fmaf(fixed[j * n] + made[j * groups], x[(row - j) * n + c], sum);
    y[i] = sum;
  }
}

// A thread owns one of the n columns of a head's state through all rows.
__global__ void delta_state_kernel(ops::DeltaSizes size, const float* __restrict__ start, const float* __restrict__ keys,
                                   const float* __restrict__ v, const float* __restrict__ decay, const float* __restrict__ beta, float* y) {
  DLAB_EACH(i, size.heads * size.n) {
    const int64_t head = i / size.n, d = i % size.n, key_head = head / (size.heads / size.key_heads), state = size.depth * size.n;
    const float* before = start + head * state + d;
    for (int64_t r = 0; r < size.rows; ++r) {
      const int64_t at = r * size.heads + head;
      const float kept = expf(decay[at]);
      const float* key = keys + (r * size.key_heads + key_head) * size.depth;
      float* after = y + at * state + d;
      for (int64_t k = 0; k < size.depth; ++k) after[k * size.n] = before[k * size.n] * kept;
      const float memory = sum_in_lanes(size.depth, [&](int64_t k, float sum) { return fmaf(after[k * size.n], key[k], sum); });
      const float step = (v[at * size.n + d] - memory) * beta[at];
      for (int64_t k = 0; k < size.depth; ++k) after[k * size.n] = fmaf(key[k], step, after[k * size.n]);
      before = after;
    }
  }
}

__global__ void delta_read_kernel(ops::DeltaSizes size, const float* __restrict__ state, const float* __restrict__ q, float* __restrict__ y) {
  DLAB_EACH(i, size.rows * size.heads * size.n) {
    const int64_t at = i / size.n, d = i % size.n, row = at / size.heads, head = at % size.heads;
    const float* query = q + (row * size.key_heads + head / (size.heads / size.key_heads)) * size.depth;
    const float* own = state + at * size.depth * size.n + d;
    y[i] = sum_in_lanes(size.depth, [&](int64_t k, float sum) { return fmaf(own[k * size.n], query[k], sum); });
  }
}

__global__ void block_mean_kernel(const float* __restrict__ x, int64_t blocks, int64_t ratio, int64_t width, float* __restrict__ y) {
  DLAB_EACH(i, blocks * width) {
    const float* first = x + i / width * ratio * width + i % width;
    float sum = 0.0f;
    for (int64_t r = 0; r < ratio; ++r) sum += first[r * width];
    y[i] = sum / static_cast<float>(ratio);
  }
}

}  // namespace

void short_conv(StreamHandle stream, const float* x, const float* history, const float* w, int64_t rows, int64_t channels, int64_t taps,
                int64_t dilation, float* y) {
  if (rows * channels == 0) return;
  short_conv_kernel<<<each_blocks(rows * channels), kEachThreads, 0, stream_of(stream)>>>(x, history, w, rows, channels, taps, dilation, y);
  check_launch("short_conv");
}

void dynamic_conv(StreamHandle stream, const float* x, const float* kernel, const float* base, int64_t rows, int64_t n, int64_t taps,
                  int64_t groups, int64_t side, float* y) {
  if (rows * n == 0) return;
  dynamic_conv_kernel<<<each_blocks(rows * n), kEachThreads, 0, stream_of(stream)>>>(x, kernel, base, rows, n, taps, groups, side, y);
  check_launch("dynamic_conv");
}

void delta_state(StreamHandle stream, const ops::DeltaSizes& size, const float* start, const float* k, const float* v, const float* decay,
                 const float* beta, float* y) {
  if (size.rows * size.heads * size.n == 0) return;
  delta_state_kernel<<<each_blocks(size.heads * size.n), kEachThreads, 0, stream_of(stream)>>>(size, start, k, v, decay, beta, y);
  check_launch("delta_state");
}

void delta_read(StreamHandle stream, const ops::DeltaSizes& size, const float* state, const float* q, float* y) {
  const int64_t n = size.rows * size.heads * size.n;
  if (n == 0) return;
  delta_read_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(size, state, q, y);
  check_launch("delta_read");
}

void block_mean(StreamHandle stream, const float* x, int64_t blocks, int64_t ratio, int64_t width, float* y) {
  if (blocks * width == 0) return;
  block_mean_kernel<<<each_blocks(blocks * width), kEachThreads, 0, stream_of(stream)>>>(x, blocks, ratio, width, y);
  check_launch("block_mean");
}

}  // namespace dlab::gpu
