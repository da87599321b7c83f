// Reductions over a block in a fixed order: 32 lanes at distances 16 .. 1, then the warps in sequence.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace dlab::gpu {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const { return a + b; }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return a > b || b != b ? a : b; }
  __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const { return a > b ? a : b; }
};

template <class T, class Join>
__device__ __forceinline__ T over_warp(T value, Join join) {
  for (int distance = 16; distance > 0; distance /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

// The whole block's value, in every thread. Threads: a multiple of 32, all of them. Ends with a barrier, so that it can be called again.
template <int Threads, class T, class Join>
__device__ __forceinline__ T over_block(T value, Join join) {
  __shared__ T warps[Threads / 32];
  value = over_warp(value, join);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  T total = warps[0];
  for (int w = 1; w < Threads / 32; ++w) total = join(total, warps[w]);
  __syncthreads();
  return total;
}

// The order lanes:32x4 of a product (linear.cu): lane l takes terms 4l .. 4l+3 of every 128 in one chain, then the lanes are added in a
// tree of neighbours. step(i, sum) returns sum with term i added.

// By one thread.
template <class Step>
__device__ float sum_in_lanes(int64_t n, Step step) {
  float level[6];  // sums of 1, 2, 4 .. neighbours that wait for theirs
  for (int lane = 0; lane < 32; ++lane) {
    float sum = 0.0f;
    for (int64_t first = 4 * lane; first < n; first += 128)
      for (int64_t i = first; i < first + 4 && i < n; ++i) sum = step(i, sum);
    int at = 0;
    for (; lane >> at & 1; ++at) sum = level[at] + sum;
    level[at] = sum;
  }
  return level[5];
}

// By the 32 lanes of a warp; every lane gets the sum.
template <class Step>
__device__ float sum_over_lanes(int lane, int64_t n, Step step) {
  float sum = 0.0f;
  for (int64_t first = 4 * lane; first < n; first += 128)
    for (int64_t i = first; i < first + 4 && i < n; ++i) sum = step(i, sum);
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  return sum;
}

}  // namespace dlab::gpu
