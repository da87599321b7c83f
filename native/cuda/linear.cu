// y = x w^T + bias for stored weights and f32 activations.
//
// A warp owns kRows output features. Of every chunk of 256 inputs lane l takes values 4l .. 4l+3 and 128+4l .. 128+4l+3 of each of its
// weight rows, decodes them in registers, and multiplies them with up to M activation rows that the block shares. Weights are read once,
// coalesced; an activation is read from shared memory once for kRows products.
//
// Every output is the same sum for every M: lane l's products in order of the inputs, one chain of FMAs, then the 32 lanes added at
// distances 1, 2, 4, 8, 16: the order lanes:32x4. A row's bits therefore do not depend on the rows beside it.
#include "device.cuh"
#include "formats.cuh"
#include "gpu/kernels.hpp"
#include "matrix_units.cuh"

namespace dlab::gpu {
namespace {

constexpr int kWarps = 4, kRows = 4, kThreads = 32 * kWarps, kChunk = 256;

// Adds the lanes' values of each of Count sums. While there are several, a lane keeps one half of them and gives the other to its
// partner; afterwards lane l holds sums first .. first+left-1, and only lanes with `owner` are to write them.
template <int Count, int Distance = 1>
__device__ __forceinline__ void add_lanes(float* v, int lane, int& first, int& left, bool& owner) {
  if constexpr (Distance == 32) {
    left = Count;
  } else if constexpr (Count > 1) {
    constexpr int half = Count / 2;
    const bool upper = lane & Distance;
    for (int i = 0; i < half; ++i) {
      const float kept = upper ? v[i + half] : v[i], given = upper ? v[i] : v[i + half];
      v[i] = kept + __shfl_xor_sync(0xffffffffu, given, Distance);
    }
    first += upper ? half : 0;
    add_lanes<half, Distance * 2>(v, lane, first, left, owner);
  } else {
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], Distance);
    owner = owner && !(lane & Distance);
    add_lanes<1, Distance * 2>(v, lane, first, left, owner);
  }
}

template <class Format, int M>
__global__ void __launch_bounds__(kThreads) linear_kernel(const float* __restrict__ x, int64_t m, Matrix w, const float* __restrict__ bias,
                                                         float* __restrict__ y) {
  __shared__ __align__(16) float chunk[M][kChunk];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row0 = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kRows;
  const int64_t first_x = static_cast<int64_t>(blockIdx.y) * M;
  float sums[kRows * M] = {};
  for (int64_t k0 = 0; k0 < w.width; k0 += kChunk) {
    __syncthreads();
    for (int i = threadIdx.x; i < M * kChunk; i += kThreads) {
      const int64_t r = first_x + i / kChunk, k = k0 + i % kChunk;
      chunk[i / kChunk][i % kChunk] = r < m && k < w.width ? x[r * w.width + k] : 0.0f;
    }
    __syncthreads();
    for (int half = 0; half < 2; ++half) {
      const int at = 128 * half + 4 * lane;
      float weights[kRows][4];
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        const int64_t row = min(row0 + n, w.rows - 1);
        Format::quad(w.data + row * w.row_bytes, k0 + at, w.width, weights[n]);
      }
#pragma unroll
      for (int r = 0; r < M; ++r) {
        const float4 v = *reinterpret_cast<const float4*>(&chunk[r][at]);
#pragma unroll
        for (int n = 0; n < kRows; ++n) {
          float sum = sums[n * M + r];
          sum = fmaf(weights[n][0], v.x, sum);
          sum = fmaf(weights[n][1], v.y, sum);
          sum = fmaf(weights[n][2], v.z, sum);
          sums[n * M + r] = fmaf(weights[n][3], v.w, sum);
        }
      }
    }
  }
  int first = 0, left = 0;
  bool owner = true;
  add_lanes<kRows * M>(sums, lane, first, left, owner);
  for (int i = 0; owner && i < left; ++i) {
    const int64_t row = row0 + (first + i) / M, r = first_x + (first + i) % M;
    if (row < w.rows && r < m) y[r * w.rows + row] = bias ? sums[i] + bias[row] : sums[i];
  }
}

template <class Format, int M>
void launch(StreamHandle stream, const float* x, int64_t m, const Matrix& w, const float* bias, float* y) {
  const dim3 grid(static_cast<unsigned>((w.rows + kWarps * kRows - 1) / (kWarps * kRows)), static_cast<unsigned>((m + M - 1) / M));
  linear_kernel<Format, M><<<grid, kThreads, 0, stream_of(stream)>>>(x, m, w, bias, y);
  check_launch("linear");
}

}  // namespace

void linear(StreamHandle stream, const float* x, int64_t m, const Matrix& w, const float* bias, float* y, Products products) {
  if (m == 0 || w.rows == 0) return;
  const bool rounded = products == Products::MatrixUnits && (w.dtype == DLAB_F16 || w.dtype == DLAB_BF16);
  if (rounded) return linear_by_matrix_units(stream, x, m, w, bias, y);
  with_format(w.dtype, [&](auto format) {
    using Format = decltype(format);
    if (m == 1) launch<Format, 1>(stream, x, m, w, bias, y);
    else if (m <= 4) launch<Format, 4>(stream, x, m, w, bias, y);
    else launch<Format, 16>(stream, x, m, w, bias, y);
  });
}

}  // namespace dlab::gpu
