// Entry points of contexts and device memory.
#include <algorithm>
#include <cstring>
#include <new>

#include "checks.hpp"
#include "formats.hpp"
#include "gpu/gpu.hpp"

namespace dlab {

extern const Kernels kBaselineKernels;

namespace gpu {

namespace {

// Weight vectors (norms, biases, sinks) are decoded on the host; one that was uploaded comes back first.
void decode_anywhere(int32_t dtype, const uint8_t* src, float* dst, int64_t n) {
  if (!backend::on_device(src)) return kBaselineKernels.decode(dtype, src, dst, n);
  const Format& format = *weight_format(dtype);
  std::vector<uint8_t> host(static_cast<size_t>(n / format.block * format.bytes));
  const Stream stream;
  download(stream, host.data(), src, static_cast<int64_t>(host.size()));
  stream.wait();
  kBaselineKernels.decode(dtype, host.data(), dst, n);
}

Kernels host_table() {
  Kernels table{};
  table.isa = backend::name;
  table.decode = decode_anywhere;
  return table;
}

dlab_ctx* open_context(const char* options) {
  int32_t cells = DLAB_F32;
  Products products = Products::Lanes;
  for (const auto& [key, value] : parse_lines(options, "options")) {
    if (key == "threads") {
      parse_integer(key, value, 0, 256);  // a device has its own
    } else if (key == "cells") {
      if (value != "f32" && value != "f16") fail(DLAB_E_ARG, "cells=%s: expected f32 or f16", value.c_str());
      cells = value == "f16" ? DLAB_F16 : DLAB_F32;
    } else if (key == "products") {
      const bool known = value == "f32" || (backend::matrix_units && value == backend::matrix_units);
      if (!known) fail(DLAB_E_ARG, "products=%s: expected f32%s%s", value.c_str(), backend::matrix_units ? " or " : "", backend::matrix_units ? backend::matrix_units : "");
      products = value == "f32" ? Products::Lanes : Products::MatrixUnits;
    } else {
      fail(DLAB_E_ARG, "option '%s' is unknown; known: threads, cells, products", key.c_str());
    }
  }
  backend::require_device();
  auto ctx = std::make_unique<Gpu>();
  ctx->cell_dtype = cells;
  ctx->products = products;
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

int64_t pitch(const dlab_tensor& t) { return row_count(t) > 1 ? t.stride_bytes[0] : row_bytes(t); }

void copy_rows_to(const dlab_tensor& from, const dlab_tensor& to, Direction direction, const Stream& stream) {
  const int64_t width = row_bytes(from), rows = row_count(from);
  if (width > 0 && rows > 0) backend::copy(stream, to.data, pitch(to), from.data, pitch(from), width, rows, direction, Site());
  stream.wait();
}

}  // namespace

const Kernels kHostTable = host_table();

}  // namespace gpu
}  // namespace dlab

using namespace dlab;
using namespace dlab::gpu;

extern "C" {

int32_t dlab_get_info(dlab_info* out) {
  if (!out || out->struct_size < offsetof(dlab_info, name))
    return set_error(DLAB_E_ARG, "get_info: out is NULL or struct_size is too small");
  static const std::string library_name = std::string("dlab-") + backend::name;
  const dlab_info info = {out->struct_size,
                          DLAB_ABI_MAJOR,
                          DLAB_ABI_MINOR,
                          DLAB_CAP_OPS | DLAB_CAP_FUSED | DLAB_CAP_DUMPS | backend::where,
                          library_name.c_str(),
                          "1.2",
                          backend::arithmetic,
                          backend::source_hash};
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
  if (ctx) delete &context(*ctx);
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
    if (bytes) made.data = backend::allocate(bytes, false, Site());
    try {
      copy_rows_to(*host, made, Direction::Up, context(*ctx).stream);
    } catch (...) {
      backend::release(made.data, false);
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
    copy_rows_to(*device, *host, Direction::Down, context(*ctx).stream);
  });
}

int32_t dlab_release(dlab_ctx* ctx, dlab_tensor* device) {
  return guarded(ctx, "release", [&] {
    require_pointer(device, "device");
    if (device->place != DLAB_DEVICE) fail(DLAB_E_ARG, "device was not made by dlab_upload");
    backend::release(device->data, false);
    *device = dlab_tensor{};
  });
}

}  // extern "C"
