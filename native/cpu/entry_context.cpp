// Entry points of contexts and device memory.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>

#include "checks.hpp"

#ifndef DLAB_SOURCE_HASH
#define DLAB_SOURCE_HASH ""
#endif

namespace dlab {
namespace {

constexpr int64_t kMaxThreads = 256;

const char* arithmetic() {
  static const std::string text = [] {
    const Kernels& kernels = choose_kernels();
    return std::string("activations=f32,accumulate=f32,order=blocked:") + std::to_string(kChunk) + ",fma=" +
           (kernels.fused_multiply_add ? "1" : "0") + ",norm_sum=f64,softmax_sum=f64,rope_angle=f64,rope_table=f32,cells=f32,isa=" +
           kernels.isa;
  }();
  return text.c_str();
}

dlab_ctx* open_context(const char* options) {
  int64_t threads = 0;
  const Kernels* kernels = &choose_kernels();
  for (const auto& [key, value] : parse_lines(options, "options")) {
    if (key == "threads") {
      threads = parse_integer(key, value, 0, kMaxThreads);
    } else if (key == "isa") {
      kernels = find_kernels(value.c_str());
      if (!kernels) fail(DLAB_E_UNSUPPORTED, "isa=%s: not built, or not of this processor", value.c_str());
    } else {
      fail(DLAB_E_ARG, "option '%s' is unknown; known: threads, isa", key.c_str());
    }
  }
  if (threads == 0) threads = std::max<int64_t>(1, std::min<int64_t>(kMaxThreads, std::thread::hardware_concurrency()));
  return new dlab_ctx(*kernels, static_cast<int>(threads));
}

}  // namespace
}  // namespace dlab

using namespace dlab;

extern "C" {

int32_t dlab_get_info(dlab_info* out) {
  if (!out || out->struct_size < offsetof(dlab_info, name))
    return set_error(DLAB_E_ARG, "get_info: out is NULL or struct_size is too small");
  try {
    const dlab_info info = {out->struct_size, DLAB_ABI_MAJOR, DLAB_ABI_MINOR, DLAB_CAP_OPS | DLAB_CAP_FUSED | DLAB_CAP_DUMPS,
                            "dlab-cpu", "1.2", arithmetic(), DLAB_SOURCE_HASH};
    memcpy(out, &info, std::min<size_t>(out->struct_size, sizeof info));
    return DLAB_OK;
  } catch (...) {
    return set_error(DLAB_E_NOMEM, "get_info: out of memory");
  }
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
  } catch (const std::exception& error) {  // a thread that could not be started
    return set_error(DLAB_E_INTERNAL, error.what());
  } catch (...) {
    return set_error(DLAB_E_INTERNAL, "open: unknown failure");
  }
}

void dlab_close(dlab_ctx* ctx) { delete ctx; }

int32_t dlab_upload(dlab_ctx* ctx, const dlab_tensor* host, dlab_tensor* device) {
  return guarded(ctx, "upload", [&] {
    require_pointer(device, "device");
    require_pointer(host, "host");
    if (host->place != DLAB_HOST) fail(DLAB_E_ARG, "host is already a device tensor");
    require_any(host, "host");
    *device = *host;
    device->place = DLAB_DEVICE;
  });
}

int32_t dlab_download(dlab_ctx* ctx, const dlab_tensor* device, dlab_tensor* host) {
  return guarded(ctx, "download", [&] {
    require_any(device, "device");
    require_any(host, "host");
    if (device->place != DLAB_DEVICE) fail(DLAB_E_ARG, "device was not made by dlab_upload");
    const bool same = device->dtype == host->dtype && device->ndim == host->ndim &&
                      std::equal(host->shape, host->shape + host->ndim, device->shape);
    if (!same)
      fail(DLAB_E_SHAPE, "host is %s, expected %s", describe(*host).c_str(), describe(*device).c_str());
    copy_rows(*device, *host);
  });
}

int32_t dlab_release(dlab_ctx* ctx, dlab_tensor* device) {
  return guarded(ctx, "release", [&] {
    require_pointer(device, "device");
    if (device->place != DLAB_DEVICE) fail(DLAB_E_ARG, "device was not made by dlab_upload");
    *device = dlab_tensor{};
  });
}

}  // extern "C"
