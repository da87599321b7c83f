#include "device.cuh"

#include <cstdio>

namespace dlab::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const int32_t code = status == cudaErrorMemoryAllocation ? DLAB_E_NOMEM : DLAB_E_DEVICE;
  fail(code, "%s: %s (%s)", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

bool on_device(const void* p) {
  cudaPointerAttributes attributes{};
  if (!p || cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    cudaGetLastError();  // older runtimes call an unregistered pointer an error
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice;
}

}  // namespace dlab::cuda
