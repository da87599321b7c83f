// A CUDA program as anyone might write it: nothing in it knows of the emulator.
//   nvcc histogram.cu -o histogram        or, without a GPU, the CMakeLists.txt beside it
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t status = (call);                                                     \
    if (status != cudaSuccess) {                                                     \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
      return 1;                                                                      \
    }                                                                                \
  } while (0)

template <int BINS>
__global__ void histogram(const unsigned char *data, size_t n, unsigned *bins) {
  __shared__ unsigned local[BINS];
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) local[b] = 0;
#ifndef FORGET_THE_BARRIER
  __syncthreads();
#endif
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[data[i] % BINS], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&bins[b], local[b]);
}

__global__ void largest(const unsigned *bins, int n, unsigned *result) {
  extern __shared__ unsigned best[];
  unsigned mine = 0;
  for (int b = threadIdx.x; b < n; b += blockDim.x) mine = max(mine, bins[b]);
  for (int step = 16; step > 0; step /= 2) mine = max(mine, __shfl_down_sync(0xffffffffu, mine, step));
  if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < blockDim.x / 32; ++w) mine = max(mine, best[w]);
    *result = mine;
  }
}

int main() {
  std::vector<unsigned char> data(10000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = (unsigned char)(i * i % 251);
  unsigned char *d_data;
  unsigned *d_bins, result = 0;
  CHECK(cudaMalloc(&d_data, data.size()));
  CHECK(cudaMalloc(&d_bins, 65 * sizeof(unsigned)));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMemcpyAsync(d_data, data.data(), data.size(), cudaMemcpyHostToDevice, stream));
  CHECK(cudaMemsetAsync(d_bins, 0, 65 * sizeof(unsigned), stream));
  histogram<64><<<dim3(4), 128, 0, stream>>>(d_data, data.size(), d_bins);
  largest<<<1, 64, 2 * sizeof(unsigned), stream>>>(d_bins, 64, d_bins + 64);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpyAsync(&result, d_bins + 64, sizeof result, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaFree(d_bins));
  CHECK(cudaFree(d_data));
  printf("fullest bin: %u\n", result);
  return 0;
}
