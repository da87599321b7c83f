// Operations that look at a whole row: one block per row.
#include <cmath>

#include "device.cuh"
#include "gpu/kernels.hpp"
#include "reduce.cuh"

namespace dlab::gpu {
namespace {

constexpr int kThreads = 256;

// The sum of squares in f64; 1/sqrt of the mean is rounded to f32 once.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const float* __restrict__ x, int64_t width, int64_t groups,
                                                           const float* __restrict__ w, bool shared, double eps, float offset,
                                                           float* __restrict__ y) {
  const int64_t group = blockIdx.x % groups, start = blockIdx.x * width;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const double v = x[start + i];
    sum += v * v;
  }
  sum = over_block<kThreads>(sum, Sum{});
  const auto inverse = static_cast<float>(1.0 / sqrt(sum / static_cast<double>(width) + eps));
  const float* own = w && !shared ? w + group * width : w;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float v = x[start + i] * inverse;
    y[start + i] = own ? v * (own[i] + offset) : v;
  }
}

__global__ void __launch_bounds__(kThreads) softmax_kernel(const float* __restrict__ x, int64_t width, float scale, float* __restrict__ y) {
  const int64_t start = blockIdx.x * width;
  float top = -INFINITY;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) top = Larger{}(top, x[start + i] * scale);
  top = over_block<kThreads>(top, Larger{});
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += expf(x[start + i] * scale - top);
  const auto total = static_cast<float>(over_block<kThreads>(sum, Sum{}));
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[start + i] = expf(x[start + i] * scale - top) / total;
}

// The two best of a set: larger values first, then lower indices. Index -1: none.
struct Best {
  float value[2];
  int32_t index[2];

  __device__ static bool before(float a, int32_t i, float b, int32_t j) {
    if (i < 0 || j < 0) return i >= 0;
    return a > b || (a == b && i < j);
  }
  __device__ void take(float v, int32_t i) {
    if (i < 0 || v != v) return;
    if (before(v, i, value[0], index[0])) {
      value[1] = value[0];
      index[1] = index[0];
      value[0] = v;
      index[0] = i;
    } else if (before(v, i, value[1], index[1])) {
      value[1] = v;
      index[1] = i;
    }
  }
};

__global__ void __launch_bounds__(kThreads) top2_kernel(const float* __restrict__ x, int64_t width, int32_t* __restrict__ ids,
                                                       float* __restrict__ values) {
  __shared__ Best warps[kThreads / 32];
  const float* row = x + blockIdx.x * width;
  Best best = {{0.0f, 0.0f}, {-1, -1}};
  for (int64_t i = threadIdx.x; i < width; i += kThreads) best.take(row[i], static_cast<int32_t>(i));
  for (int distance = 16; distance > 0; distance /= 2) {
    Best other;
    for (int n = 0; n < 2; ++n) {
      other.value[n] = __shfl_xor_sync(0xffffffffu, best.value[n], distance);
      other.index[n] = __shfl_xor_sync(0xffffffffu, best.index[n], distance);
    }
    for (int n = 0; n < 2; ++n) best.take(other.value[n], other.index[n]);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w)
    for (int n = 0; n < 2; ++n) best.take(warps[w].value[n], warps[w].index[n]);
  for (int n = 0; n < 2; ++n) {
    ids[blockIdx.x * 2 + n] = best.index[n];
    values[blockIdx.x * 2 + n] = best.index[n] < 0 ? nanf("") : best.value[n];
  }
}

unsigned blocks(int64_t count) { return static_cast<unsigned>(count); }

}  // namespace

void rms_norm(StreamHandle stream, const float* x, int64_t rows, int64_t width, int64_t groups, const float* w, bool shared, double eps,
              double offset, float* y) {
  if (rows == 0 || width == 0) return;
  const auto added = static_cast<float>(offset);
  rms_norm_kernel<<<blocks(rows * groups), kThreads, 0, stream_of(stream)>>>(x, width / groups, groups, w, shared, eps, added, y);
  check_launch("rms_norm");
}

void softmax(StreamHandle stream, const float* x, int64_t rows, int64_t width, float scale, float* y) {
  if (rows == 0 || width == 0) return;
  softmax_kernel<<<blocks(rows), kThreads, 0, stream_of(stream)>>>(x, width, scale, y);
  check_launch("softmax");
}

void top2(StreamHandle stream, const float* x, int64_t rows, int64_t width, int32_t* ids, float* values) {
  if (rows == 0) return;
  top2_kernel<<<blocks(rows), kThreads, 0, stream_of(stream)>>>(x, width, ids, values);
  check_launch("top2");
}

}  // namespace dlab::gpu
