// out = softmax(scale q k^T over visible cells) v, with grouped key/value heads.
//
// A block serves one query row and up to kHeads query heads of one key/value head, a warp per query head. Cells go by in tiles of 32: lane
// c scores cell c against keys that the block shares in slices of kSlice, then each lane adds the tile's values for its own dimensions.
// The softmax is taken online: a running maximum, and sums that are rescaled when it grows. Scores are summed over 32 dimensions at a
// time and values over a tile, each apart and then added: the order blocked:32, of dimensions and of cells.
#include <cmath>

#include "device.cuh"
#include "formats.cuh"
#include "gpu/kernels.hpp"
#include "reduce.cuh"

namespace dlab::gpu {
namespace {

constexpr int kHeads = 4, kThreads = 32 * kHeads, kTile = 32, kSlice = 64, kChain = 32;

template <class Cell>
__device__ float value_of(Cell x);
template <>
__device__ float value_of(float x) { return x; }
template <>
__device__ float value_of(__half x) { return __half2float(x); }
template <>
__device__ float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }

// Slots: a lane owns dimensions lane, lane+32, ... of the output, at most Slots of them.
template <class Key, class Value, int Slots>
__global__ void __launch_bounds__(kThreads) attention_kernel(AttentionSizes n, const float* __restrict__ q, const Key* __restrict__ k,
                                                            const Value* __restrict__ v, const uint8_t* __restrict__ visible, float scale,
                                                            const float* __restrict__ sinks, float* __restrict__ out) {
  __shared__ float keys[kTile][kSlice + 1];  // one more, so that the lanes' rows lie in different banks
  __shared__ float weights[kHeads][kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = blockIdx.x, kv_head = blockIdx.y, share = n.heads / n.kv_heads;
  const int64_t member = static_cast<int64_t>(blockIdx.z) * kHeads + warp;
  const bool active = member < share;
  const int64_t head = kv_head * share + (active ? member : 0);
  const float* query = q + (row * n.heads + head) * n.dim;
  float top = sinks ? sinks[head] : -INFINITY, total = sinks ? 1.0f : 0.0f, sums[Slots] = {};
  bool any = false;
  for (int64_t c0 = 0; c0 < n.cells; c0 += kTile) {
    const int64_t cell = c0 + lane;
    const bool sees = cell < n.cells && (!visible || visible[row * n.cells + cell]);
    const unsigned seen = __ballot_sync(0xffffffffu, sees);
    if (seen == 0) continue;  // the same for every warp of the block
    any = true;
    float score = 0.0f;
    for (int64_t d0 = 0; d0 < n.dim; d0 += kSlice) {
      const int width = static_cast<int>(min(n.dim - d0, static_cast<int64_t>(kSlice)));
      __syncthreads();
      for (int i = threadIdx.x; i < kTile * kSlice; i += kThreads) {
        const int64_t c = c0 + i / kSlice, d = d0 + i % kSlice;
        keys[i / kSlice][i % kSlice] = c < n.cells && d < n.dim ? value_of(k[(c * n.kv_heads + kv_head) * n.dim + d]) : 0.0f;
      }
      __syncthreads();
      for (int first = 0; first < width; first += kChain) {
        float part = 0.0f;
        for (int d = first; d < min(width, first + kChain); ++d) part = fmaf(query[d0 + d], keys[lane][d], part);
        score += part;
      }
    }
    score = sees ? score * scale : -INFINITY;
    const float highest = Larger{}(top, over_warp(score, Larger{}));
    const float shrink = top == highest ? 1.0f : expf(top - highest);
    const float weight = sees ? expf(score - highest) : 0.0f;
    top = highest;
    total = total * shrink + over_warp(weight, Sum{});
    weights[warp][lane] = weight;
    __syncwarp();
    for (int s = 0; s < Slots; ++s) {
      const int64_t d = lane + 32 * s;
      if (d >= n.dim) break;
      float sum = 0.0f;
      for (unsigned left = seen; left; left &= left - 1) {  // unseen cells are skipped: their values never matter
        const int c = __ffs(static_cast<int>(left)) - 1;
        sum = fmaf(weights[warp][c], value_of(v[((c0 + c) * n.kv_heads + kv_head) * n.dim + d]), sum);
      }
      sums[s] = sums[s] * shrink + sum;
    }
    __syncwarp();
  }
  for (int s = 0; active && s < Slots; ++s) {
    const int64_t d = lane + 32 * s;
    if (d < n.dim) out[(row * n.heads + head) * n.dim + d] = any ? sums[s] / total : 0.0f;
  }
}

template <class Key, class Value>
void launch(StreamHandle stream, const AttentionSizes& n, const float* q, const void* k, const void* v, const uint8_t* visible, float scale,
            const float* sinks, float* out) {
  const int64_t groups = (n.heads / n.kv_heads + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(n.rows), static_cast<unsigned>(n.kv_heads), static_cast<unsigned>(groups));
  const auto* keys = static_cast<const Key*>(k);
  const auto* values = static_cast<const Value*>(v);
  if (n.dim <= 128) attention_kernel<Key, Value, 4><<<grid, kThreads, 0, stream_of(stream)>>>(n, q, keys, values, visible, scale, sinks, out);
  else if (n.dim <= 256) attention_kernel<Key, Value, 8><<<grid, kThreads, 0, stream_of(stream)>>>(n, q, keys, values, visible, scale, sinks, out);
  else attention_kernel<Key, Value, kMaxHeadDim / 32><<<grid, kThreads, 0, stream_of(stream)>>>(n, q, keys, values, visible, scale, sinks, out);
  check_launch("attention");
}

template <class Visit>
void with_cell(int32_t dtype, Visit&& visit) {
  if (dtype == DLAB_F16) visit(__half{});
  else if (dtype == DLAB_BF16) visit(__nv_bfloat16{});
  else visit(float{});
}

}  // namespace

void attention(StreamHandle stream, const AttentionSizes& n, const float* q, CellRows k, CellRows v, const uint8_t* visible, float scale,
               const float* sinks, float* out) {
  if (n.rows == 0 || n.heads == 0 || n.dim == 0) return;
  if (n.dim > kMaxHeadDim) fail(DLAB_E_UNSUPPORTED, "heads of %lld values, this library takes up to %lld", ll(n.dim), ll(kMaxHeadDim));
  with_cell(k.dtype, [&](auto key) {
    with_cell(v.dtype, [&](auto value) {
      launch<decltype(key), decltype(value)>(stream, n, q, k.data, v.data, visible, scale, sinks, out);
    });
  });
}

}  // namespace dlab::gpu
