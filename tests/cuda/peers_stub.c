/* Stands in for the driver and for cuBLAS where device memory is memory of the process: what the calls mean, on the host. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int bytes, int device) { return strncpy(name, "stub", (size_t)bytes), device; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = context, device; }
int cuCtxSetCurrent(void* context) { return context == NULL; }
int cuCtxSynchronize(void) { return 0; }

static float bf16(const void* p, long i) {
  uint32_t bits = (uint32_t)((const uint16_t*)p)[i] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

int cublasCreate_v2(void** handle) { return *handle = handle, 0; }
int cublasDestroy_v2(void* handle) { return handle == NULL; }
/* C[i + j ldc] = alpha sum over l of op(A)[i,l] op(B)[l,j] + beta C, matrices by columns. */
int cublasGemmEx(void* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda,
                 const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute, int algorithm) {
  if (!handle || a_type != 14 || b_type != 14 || c_type != 0 || compute != 68 || algorithm != -1) return 7;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) {
        const long at = transa ? l + (long)i * lda : i + (long)l * lda, bt = transb ? j + (long)l * ldb : l + (long)j * ldb;
        sum += bf16(a, at) * bf16(b, bt);
      }
      float* out = (float*)c + i + (long)j * ldc;
      *out = *(const float*)alpha * sum + (*(const float*)beta ? *(const float*)beta * *out : 0);
    }
  return 0;
}
