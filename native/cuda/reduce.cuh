// Reductions over a block in a fixed order: 32 lanes at distances 16 .. 1, then the warps in sequence.
#pragma once

#include <cuda_runtime.h>

namespace dlab::gpu {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const { return a + b; }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return a > b || b != b ? a : b; }
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

}  // namespace dlab::gpu
