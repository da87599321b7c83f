// Kernels and host code with one mistake each, and the same without it: `wrong` chooses. The emulator must name the marked lines.
#include <cuda_runtime.h>

#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// A block sum that reads its neighbours' values. Without the barrier they may not be there yet.
__global__ void block_sum(const float* x, float* y, bool wrong) {
  __shared__ float part[64];
  part[threadIdx.x] = x[threadIdx.x];  // MARK barrier.write
  if (!wrong) __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int i = 0; i < 64; ++i) total += part[i];  // MARK barrier.read
    *y = total;
  }
}

__global__ void shifted(const float* x, float* y, bool wrong) {
  __shared__ float part[64];
  part[threadIdx.x + (wrong ? 1 : 0)] = x[threadIdx.x];  // MARK bounds
  __syncthreads();
  y[threadIdx.x] = part[threadIdx.x];
}

__global__ void half_filled(const float* x, float* y, bool wrong) {
  __shared__ float part[64];
  if (!wrong || threadIdx.x < 32) part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = part[63 - threadIdx.x];  // MARK uninitialised.shared
}

__global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }  // MARK uninitialised.device

__global__ void diverging(const float* x, float* y, bool wrong) {
  float v = x[threadIdx.x];
  if (!wrong || threadIdx.x < 16) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);  // MARK shuffle
  }
  __syncthreads();  // MARK shuffle.others
  y[threadIdx.x] = v;
}

__global__ void two_barriers(const float* x, float* y, bool wrong) {
  if (!wrong || threadIdx.x < 32) __syncthreads();  // MARK barrier.first
  else __syncthreads();  // MARK barrier.second
  y[threadIdx.x] = x[threadIdx.x];
}

// Threads that have returned are not waited for, as on devices since Volta; what they have not written is not there.
__global__ void early(const float* x, float* y, bool wrong) {
  __shared__ float part[64];
  if (wrong && threadIdx.x >= 48) return;
  part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = part[63 - threadIdx.x];  // MARK early
}

EXPORT int run_kernel(int which, int wrong) {
  float *x, *y;
  cudaMalloc(&x, 64 * sizeof(float));
  cudaMalloc(&y, 64 * sizeof(float));
  std::vector<float> host(64, 1.0f);
  if (which != 3 || !wrong) cudaMemcpy(x, host.data(), 64 * sizeof(float), cudaMemcpyHostToDevice);
  if (which == 0) block_sum<<<1, 64>>>(x, y, wrong != 0);
  if (which == 1) shifted<<<1, 64>>>(x, y, wrong != 0);
  if (which == 2) half_filled<<<1, 64>>>(x, y, wrong != 0);
  if (which == 3) copy<<<1, 64>>>(x, y);
  if (which == 4) diverging<<<1, 32>>>(x, y, wrong != 0);
  if (which == 5) two_barriers<<<1, 64>>>(x, y, wrong != 0);
  if (which == 6) early<<<1, 64>>>(x, y, wrong != 0);
  const cudaError_t status = cudaDeviceSynchronize();
  cudaFree(x);
  cudaFree(y);
  return status;
}

// The positions each head is rotated by.
__global__ void note_positions(const int* pos, int n, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = pos[i];
}

__global__ void make_positions(int* pos, int n, int heads, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) pos[i] = first + i / heads;
}

enum Staging { kShared, kOnce, kWait, kDisjoint, kDevice };

// One pinned buffer for the positions of the queries and, while that copy may be pending, of the keys.
// q [layers][rows][q_heads], k [layers][rows][k_heads]: the positions that were used.
EXPORT int stage_positions(int how, int layers, int rows, int q_heads, int k_heads, int first, int* q, int* k) {
  const int nq = rows * q_heads, nk = rows * k_heads;
  cudaStream_t s;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  int *host, *pos_q, *pos_k, *used;
  cudaHostAlloc(&host, (nq + nk) * sizeof(int), cudaHostAllocDefault);
  int* host_k = how == kDisjoint ? host + nq : host;
  cudaMalloc(&pos_q, nq * sizeof(int));
  cudaMalloc(&pos_k, nk * sizeof(int));
  cudaMalloc(&used, (nq + nk) * layers * sizeof(int));
  for (int l = 0; l < layers; ++l) {
    if (how == kDevice) {
      make_positions<<<(nq + 63) / 64, 64, 0, s>>>(pos_q, nq, q_heads, first);
      make_positions<<<(nk + 63) / 64, 64, 0, s>>>(pos_k, nk, k_heads, first);
    } else {
      if (how != kOnce || l == 0)
        for (int i = 0; i < nq; ++i) host[i] = first + i / q_heads;  // MARK strata.queries
      cudaMemcpyAsync(pos_q, host, nq * sizeof(int), cudaMemcpyHostToDevice, s);  // MARK strata.copy
      if (how == kWait) cudaStreamSynchronize(s);
      for (int i = 0; i < nk; ++i) host_k[i] = first + i / k_heads;  // MARK strata.rewrite
      cudaMemcpyAsync(pos_k, host_k, nk * sizeof(int), cudaMemcpyHostToDevice, s);
      if (how == kWait) cudaStreamSynchronize(s);
    }
    note_positions<<<(nq + 63) / 64, 64, 0, s>>>(pos_q, nq, used + l * (nq + nk));
    note_positions<<<(nk + 63) / 64, 64, 0, s>>>(pos_k, nk, used + l * (nq + nk) + nq);
  }
  cudaStreamSynchronize(s);
  std::vector<int> all((nq + nk) * layers);
  cudaMemcpy(all.data(), used, all.size() * sizeof(int), cudaMemcpyDeviceToHost);
  for (int l = 0; l < layers; ++l) {
    for (int i = 0; i < nq; ++i) q[l * nq + i] = all[l * (nq + nk) + i];
    for (int i = 0; i < nk; ++i) k[l * nk + i] = all[l * (nq + nk) + nq + i];
  }
  cudaFreeHost(host);
  cudaFree(pos_q);
  cudaFree(pos_k);
  cudaFree(used);
  cudaStreamDestroy(s);
  return cudaGetLastError();
}

// Context rows in chunks: the metadata of the next chunk is written while the previous one may be in flight.
EXPORT int append_chunks(int wrong, int chunks, int* out) {
  cudaStream_t s;
  cudaEvent_t copied;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&copied, cudaEventDisableTiming);
  int *host, *meta, *used;
  cudaHostAlloc(&host, 8 * sizeof(int), cudaHostAllocDefault);
  cudaMalloc(&meta, 8 * sizeof(int));
  cudaMalloc(&used, 8 * chunks * sizeof(int));
  for (int c = 0; c < chunks; ++c) {
    if (c > 0 && !wrong) cudaEventSynchronize(copied);
    for (int i = 0; i < 8; ++i) host[i] = 8 * c + i;  // MARK append.rewrite
    cudaMemcpyAsync(meta, host, 8 * sizeof(int), cudaMemcpyHostToDevice, s);  // MARK append.copy
    cudaEventRecord(copied, s);
    note_positions<<<1, 8, 0, s>>>(meta, 8, used + 8 * c);
  }
  cudaStreamSynchronize(s);
  cudaMemcpy(out, used, 8 * chunks * sizeof(int), cudaMemcpyDeviceToHost);
  cudaFreeHost(host);
  cudaFree(meta);
  cudaFree(used);
  return cudaGetLastError();
}

__global__ void fill(float* x, float value) { x[threadIdx.x] = value; }                             // MARK event.write
__global__ void add_one(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] + 1.0f; }  // MARK event.read

// Two streams: one makes what the other reads, ordered by an event.
EXPORT int two_streams(int wrong, float* out) {
  cudaStream_t a, b;
  cudaEvent_t made;
  cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  float *x, *y;
  cudaMalloc(&x, 32 * sizeof(float));
  cudaMalloc(&y, 32 * sizeof(float));
  cudaMemset(x, 0, 32 * sizeof(float));
  cudaDeviceSynchronize();
  fill<<<1, 32, 0, a>>>(x, 41.0f);
  cudaEventRecord(made, a);
  if (!wrong) cudaStreamWaitEvent(b, made, 0);
  add_one<<<1, 32, 0, b>>>(x, y);
  cudaMemcpyAsync(out, y, 32 * sizeof(float), cudaMemcpyDeviceToHost, b);
  cudaDeviceSynchronize();
  cudaFree(x);
  cudaFree(y);
  return cudaGetLastError();
}
