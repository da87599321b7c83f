// A third party's engine with one operation on a device: the handshake of native/example/engine.c, the norm as a kernel. The environment
// variable ENGINE_MISTAKE plants one mistake in it: race or hazard.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "dlab.h"

extern "C" int32_t plain_get_info(dlab_info* out);

namespace {

constexpr int kThreads = 64;

bool planted(const char* mistake) {
  const char* wanted = getenv("ENGINE_MISTAKE");
  return wanted && !strcmp(wanted, mistake);
}

__global__ void norm_kernel(const float* x, const float* w, int n, float eps, float offset, float* y, bool racing) {
  __shared__ float part[kThreads];
  const float* row = x + blockIdx.x * n;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += row[i] * row[i];
  part[threadIdx.x] = sum;  // MARK engine.write
  if (!racing) __syncthreads();
  float total = 0.0f;
  for (int t = 0; t < kThreads; ++t) total += part[t];  // MARK engine.read
  const float inverse = 1.0f / sqrtf(total / n + eps);
  for (int i = threadIdx.x; i < n; i += kThreads) y[blockIdx.x * n + i] = row[i] * inverse * (w ? w[i] + offset : 1.0f);
}

}  // namespace

extern "C" {

DLAB_API int32_t dlab_get_info(dlab_info* out) {
  const int32_t status = plain_get_info(out);
  if (status == DLAB_OK) out->flags |= DLAB_CAP_EMULATED;
  return status;
}

DLAB_API int32_t dlab_rms_norm(dlab_ctx*, const dlab_tensor* x, const dlab_tensor* w, double eps, double offset, int32_t groups,
                               dlab_tensor* y) {
  const int64_t rows = x->shape[0], n = x->shape[1];
  if (groups != 1 || x->dtype != DLAB_F32 || (w && w->dtype != DLAB_F32)) return DLAB_E_UNSUPPORTED;
  const size_t bytes = static_cast<size_t>(rows * n) * sizeof(float), row_bytes = static_cast<size_t>(n) * sizeof(float);
  if (!bytes) return DLAB_OK;
  float *staging, *device_x, *device_w, *device_y;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMallocHost(&staging, bytes);
  cudaMalloc(&device_x, bytes);
  cudaMalloc(&device_w, row_bytes);
  cudaMalloc(&device_y, bytes);
  for (int64_t r = 0; r < rows; ++r) memcpy(staging + r * n, static_cast<const char*>(x->data) + r * x->stride_bytes[0], row_bytes);
  cudaMemcpyAsync(device_x, staging, bytes, cudaMemcpyHostToDevice, stream);  // MARK engine.copy
  if (!planted("hazard")) cudaStreamSynchronize(stream);
  if (w) {
    memcpy(staging, w->data, row_bytes);  // MARK engine.rewrite
    cudaMemcpyAsync(device_w, staging, row_bytes, cudaMemcpyHostToDevice, stream);
  }
  norm_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(device_x, w ? device_w : nullptr, static_cast<int>(n),
                                                                   static_cast<float>(eps), static_cast<float>(offset), device_y,
                                                                   planted("race"));
  cudaMemcpyAsync(staging, device_y, bytes, cudaMemcpyDeviceToHost, stream);
  const cudaError_t status = cudaStreamSynchronize(stream);
  for (int64_t r = 0; status == cudaSuccess && r < rows; ++r)
    memcpy(static_cast<char*>(y->data) + r * y->stride_bytes[0], staging + r * n, row_bytes);
  cudaFree(device_x);
  cudaFree(device_w);
  cudaFree(device_y);
  cudaFreeHost(staging);
  cudaStreamDestroy(stream);
  return status == cudaSuccess ? DLAB_OK : DLAB_E_DEVICE;
}

}  // extern "C"
