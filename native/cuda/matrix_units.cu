// y = x w^T + bias by the matrix units, for weights in F16 or BF16: the activations are rounded to the weight's type, the sums are f32.
//
// A warp owns 16 activation rows by 16 output features and goes over the inputs 16 at a time; what lies beyond an edge is 0. In which order
// the unit adds the products of a step is its own affair, so the declared arithmetic promises none; it is the same for every row.
#include "matrix_units.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "device.cuh"

namespace dlab::gpu {
namespace {

namespace wmma = nvcuda::wmma;
constexpr int kTile = 16, kLanes = 32;

__device__ inline void round_to(__half& to, float value) { to = __float2half_rn(value); }
__device__ inline void round_to(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }

template <class Value>
__global__ void __launch_bounds__(kLanes) linear_mma_kernel(const float* __restrict__ x, int64_t m, Matrix w,
                                                               const float* __restrict__ bias, float* __restrict__ y) {
  __shared__ __align__(32) Value rows[kTile * kTile], features[kTile * kTile];
  __shared__ __align__(32) float sums[kTile * kTile];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile, first_feature = static_cast<int64_t>(blockIdx.x) * kTile;
  wmma::fragment<wmma::matrix_a, kTile, kTile, kTile, Value, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, kTile, kTile, kTile, Value, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, kTile, kTile, kTile, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int64_t k0 = 0; k0 < w.width; k0 += kTile) {
    __syncwarp();
    for (int i = threadIdx.x; i < kTile * kTile; i += kLanes) {
      const int64_t r = first_row + i / kTile, n = first_feature + i / kTile, k = k0 + i % kTile;
      round_to(rows[i], r < m && k < w.width ? x[r * w.width + k] : 0.0f);
      if (n < w.rows && k < w.width) features[i] = reinterpret_cast<const Value*>(w.data + n * w.row_bytes)[k];
      else round_to(features[i], 0.0f);
    }
    __syncwarp();
    wmma::load_matrix_sync(a, rows, kTile);
    wmma::load_matrix_sync(b, features, kTile);
    wmma::mma_sync(sum, a, b, sum);
  }
  wmma::store_matrix_sync(sums, sum, kTile, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x; i < kTile * kTile; i += kLanes) {
    const int64_t r = first_row + i / kTile, n = first_feature + i % kTile;
    if (r < m && n < w.rows) y[r * w.rows + n] = bias ? sums[i] + bias[n] : sums[i];
  }
}

}  // namespace

void linear_by_matrix_units(StreamHandle stream, const float* x, int64_t m, const Matrix& w, const float* bias, float* y) {
  if (m == 0 || w.rows == 0) return;
  const dim3 grid(static_cast<unsigned>((w.rows + kTile - 1) / kTile), static_cast<unsigned>((m + kTile - 1) / kTile));
  if (w.dtype == DLAB_F16) linear_mma_kernel<__half><<<grid, kLanes, 0, stream_of(stream)>>>(x, m, w, bias, y);
  else linear_mma_kernel<__nv_bfloat16><<<grid, kLanes, 0, stream_of(stream)>>>(x, m, w, bias, y);
  check_launch("linear_by_matrix_units");
}

}  // namespace dlab::gpu
