// Entry points of contexts and device memory.
#include <algorithm>
#include <cstring>
#include <new>

#include "checks.hpp"
#include "formats.hpp"
#include "gpu.cuh"

#ifndef DLAB_SOURCE_HASH
#define DLAB_SOURCE_HASH ""
#endif

#ifdef __CUDACC__
#define DLAB_NAME "dlab-cuda"
#define DLAB_WHERE DLAB_CAP_DEVICE
#else
#define DLAB_NAME "dlab-cuda-emu"
#define DLAB_WHERE DLAB_CAP_EMULATED
#endif

namespace dlab {

extern const Kernels kBaselineKernels;

namespace cuda {

namespace {

// Weight vectors (norms, biases, sinks) are decoded on the host; one that was uploaded comes back first.
void decode_anywhere(int32_t dtype, const uint8_t* src, float* dst, int64_t n) {
  if (!on_device(src)) return kBaselineKernels.decode(dtype, src, dst, n);
  const Format& format = *weight_format(dtype);
  std::vector<uint8_t> host(static_cast<size_t>(n / format.block * format.bytes));
  DLAB_CUDA(cudaMemcpy(host.data(), src, host.size(), cudaMemcpyDeviceToHost));
  kBaselineKernels.decode(dtype, host.data(), dst, n);
}

Kernels host_table() {
  Kernels table{};
  table.isa = "cuda";
  table.decode = decode_anywhere;
  return table;
}

// Says why there is no device, for a driver that is missing, too old, or has none.
void require_device() {
  int count = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&driver);
  if (status == cudaSuccess && count > 0) return;
  cudaGetLastError();
  if (driver == 0) fail(DLAB_E_NO_DEVICE, "there is no NVIDIA driver; use a machine with a GPU, or the library cuda-emu");
  if (status == cudaErrorInsufficientDriver)
    fail(DLAB_E_NO_DEVICE, "the NVIDIA driver is for CUDA %d.%d, older than this library; update the driver", driver / 1000, driver % 100 / 10);
  fail(DLAB_E_NO_DEVICE, "the driver finds no device (%s)", cudaGetErrorString(status));
}

dlab_ctx* open_context(const char* options) {
  int32_t cells = DLAB_F32;
  for (const auto& [key, value] : parse_lines(options, "options")) {
    if (key == "threads") {
      parse_integer(key, value, 0, 256);  // a device has its own
    } else if (key == "cells") {
      if (value != "f32" && value != "f16") fail(DLAB_E_ARG, "cells=%s: expected f32 or f16", value.c_str());
      cells = value == "f16" ? DLAB_F16 : DLAB_F32;
    } else {
      fail(DLAB_E_ARG, "option '%s' is unknown; known: threads, cells", key.c_str());
    }
  }
  require_device();
  auto ctx = std::make_unique<Gpu>();
  ctx->cell_dtype = cells;
  return ctx.release();
}

int64_t row_bytes(const dlab_tensor& t) {
  const int64_t last = t.shape[t.ndim - 1];
  int64_t bytes = t.ndim > 1 ? 1 : last;
  for (int i = 1; i < t.ndim; ++i) bytes *= t.shape[i];
  if (const Format* format = weight_format(t.dtype)) return bytes / format->block * format->bytes;
  return bytes * (t.dtype == DLAB_I32 ? 4 : 8);
}

int64_t row_count(const dlab_tensor& t) { return t.ndim > 1 ? t.shape[0] : 1; }

size_t pitch(const dlab_tensor& t) {
  return static_cast<size_t>(row_count(t) > 1 ? t.stride_bytes[0] : row_bytes(t));
}

void copy_rows_to(const dlab_tensor& from, const dlab_tensor& to, cudaMemcpyKind kind, cudaStream_t stream) {
  const auto width = static_cast<size_t>(row_bytes(from)), rows = static_cast<size_t>(row_count(from));
  if (width > 0 && rows > 0) DLAB_CUDA(cudaMemcpy2DAsync(to.data, pitch(to), from.data, pitch(from), width, rows, kind, stream));
  DLAB_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace

const Kernels kHostTable = host_table();

}  // namespace cuda
}  // namespace dlab

using namespace dlab;
using namespace dlab::cuda;

extern "C" {

int32_t dlab_get_info(dlab_info* out) {
  if (!out || out->struct_size < offsetof(dlab_info, name))
    return set_error(DLAB_E_ARG, "get_info: out is NULL or struct_size is too small");
  const dlab_info info = {out->struct_size,
                          DLAB_ABI_MAJOR,
                          DLAB_ABI_MINOR,
                          DLAB_CAP_OPS | DLAB_CAP_FUSED | DLAB_CAP_DUMPS | DLAB_WHERE,
                          DLAB_NAME,
                          "1.1",
                          "activations=f32,accumulate=f32,order=lanes:32x4,attention_order=blocked:32,fma=1,norm_sum=f64,softmax=online,rope_angle=f64,rope_table=f32,cells=f32",
                          DLAB_SOURCE_HASH};
  memcpy(out, &info, std::min<size_t>(out->struct_size, sizeof info));
  return DLAB_OK;
}

int32_t dlab_open(const char* options, dlab_ctx** out) {
  if (!out) return set_error(DLAB_E_ARG, "open: out is NULL");
  try {
    *out = open_context(options);
    return DLAB_OK;
  } catch (const Error& error) {
    return set_error(error.status, ("open: " + error.text).c_str());
  } catch (const std::bad_alloc&) {
    return set_error(DLAB_E_NOMEM, "open: out of memory");
  } catch (...) {
    return set_error(DLAB_E_INTERNAL, "open: unknown failure");
  }
}

void dlab_close(dlab_ctx* ctx) {
  if (ctx) delete &gpu(*ctx);
}

int32_t dlab_upload(dlab_ctx* ctx, const dlab_tensor* host, dlab_tensor* device) {
  return guarded(ctx, "upload", [&] {
    require_pointer(device, "device");
    require_pointer(host, "host");
    if (host->place != DLAB_HOST) fail(DLAB_E_ARG, "host is already a device tensor");
    require_any(host, "host");
    dlab_tensor made = *host;
    made.place = DLAB_DEVICE;
    made.data = nullptr;
    if (made.ndim > 1) made.stride_bytes[0] = row_bytes(made);
    const int64_t bytes = row_bytes(made) * row_count(made);
    if (bytes) DLAB_CUDA(cudaMalloc(&made.data, static_cast<size_t>(bytes)));
    try {
      copy_rows_to(*host, made, cudaMemcpyHostToDevice, gpu(*ctx).stream);
    } catch (...) {
      cudaFree(made.data);
      throw;
    }
    *device = made;
  });
}

int32_t dlab_download(dlab_ctx* ctx, const dlab_tensor* device, dlab_tensor* host) {
  return guarded(ctx, "download", [&] {
    require_any(device, "device");
    require_any(host, "host");
    if (device->place != DLAB_DEVICE) fail(DLAB_E_ARG, "device was not made by dlab_upload");
    const bool same = device->dtype == host->dtype && device->ndim == host->ndim && std::equal(host->shape, host->shape + host->ndim, device->shape);
    if (!same) fail(DLAB_E_SHAPE, "host is %s, expected %s", describe(*host).c_str(), describe(*device).c_str());
    copy_rows_to(*device, *host, cudaMemcpyDeviceToHost, gpu(*ctx).stream);
  });
}

int32_t dlab_release(dlab_ctx* ctx, dlab_tensor* device) {
  return guarded(ctx, "release", [&] {
    require_pointer(device, "device");
    if (device->place != DLAB_DEVICE) fail(DLAB_E_ARG, "device was not made by dlab_upload");
    DLAB_CUDA(cudaFree(device->data));
    *device = dlab_tensor{};
  });
}

}  // extern "C"
