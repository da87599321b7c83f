// One thread per value, in strides of the grid, and the functions that such kernels share.
#pragma once

#include <cmath>

#include "device.cuh"

namespace dlab::gpu {

constexpr int kEachThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

inline unsigned each_blocks(int64_t n) {
  const int64_t wanted = (n + kEachThreads - 1) / kEachThreads;
  return static_cast<unsigned>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
}

// i = this thread's values among n
#define DLAB_EACH(i, n)                                                                                                          \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, stride_ = static_cast<int64_t>(gridDim.x) * blockDim.x; \
       i < (n); i += stride_)

// 1 / (1 + exp(-x)) without overflow, relatively accurate on both sides.
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// log(1 + exp(x)) without overflow.
__device__ inline float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))); }

// x * sigmoid(2z): gelu-tanh without the cancellation in 1 + tanh(z).
__device__ inline float gelu_tanh(float x) {
  const float z = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * sigmoid(2.0f * z);
}

}  // namespace dlab::gpu
