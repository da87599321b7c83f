/* A third party's engine: the handshake and the operations it has, in plain C, in about a hundred lines.
 *
 * Copy it, replace the loops by calls into your engine, and run `parity run --candidate path/to/libengine.so`. Operations you do not
 * define are not compared. To expose a whole drafter, define the dlab_drafter_* functions and add DLAB_CAP_FUSED to the flags.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dlab.h"

struct dlab_ctx {
  int unused;
};

static _Thread_local char last_error[256];

static int32_t fail(int32_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

int32_t dlab_get_info(dlab_info* out) {
  const dlab_info info = {sizeof info, DLAB_ABI_MAJOR, DLAB_ABI_MINOR, DLAB_CAP_OPS, "example-engine", "0.1",
                          "activations=f32,accumulate=f32,order=sequential", ""};
  const uint32_t size = out ? out->struct_size : 0;
  if (size < offsetof(dlab_info, name)) return fail(DLAB_E_ARG, "get_info: struct_size is too small");
  memcpy(out, &info, size < sizeof info ? size : sizeof info);
  out->struct_size = size;
  return DLAB_OK;
}

#define FIELD(type, field) \
  if (!strcmp(type_name, #type) && !strcmp(name, #field)) return *size = sizeof(type), *offset = offsetof(type, field), DLAB_OK;

int32_t dlab_layout(const char* type_name, const char* name, int64_t* size, int64_t* offset) {
  FIELD(dlab_tensor, data) FIELD(dlab_tensor, shape) FIELD(dlab_tensor, stride_bytes) FIELD(dlab_tensor, dtype)
  FIELD(dlab_tensor, ndim) FIELD(dlab_tensor, place) FIELD(dlab_tensor, reserved)
  FIELD(dlab_named_tensor, name) FIELD(dlab_named_tensor, tensor)
  FIELD(dlab_dump, struct_size) FIELD(dlab_dump, reserved) FIELD(dlab_dump, stage) FIELD(dlab_dump, row0) FIELD(dlab_dump, tensor)
  FIELD(dlab_info, struct_size) FIELD(dlab_info, abi_major) FIELD(dlab_info, abi_minor) FIELD(dlab_info, flags)
  FIELD(dlab_info, name) FIELD(dlab_info, version) FIELD(dlab_info, arithmetic) FIELD(dlab_info, source_hash)
  return fail(DLAB_E_ARG, "layout: no field %s.%s", type_name, name);
}

int32_t dlab_open(const char* options, dlab_ctx** out) {
  (void)options; /* this engine has one thread, whatever is asked for */
  *out = calloc(1, sizeof **out);
  return *out ? DLAB_OK : fail(DLAB_E_NOMEM, "open: out of memory");
}

void dlab_close(dlab_ctx* ctx) { free(ctx); }

const char* dlab_last_error(dlab_ctx* ctx) {
  (void)ctx;
  return last_error;
}

static int is_matrix(const dlab_tensor* t) { return t && t->dtype == DLAB_F32 && t->ndim == 2 && t->stride_bytes[1] == 4; }
static int fits(const dlab_tensor* t, int64_t length) { return !t || (t->dtype == DLAB_F32 && t->ndim == 1 && t->shape[0] == length); }
static float* row(const dlab_tensor* t, int64_t r) { return (float*)((char*)t->data + r * t->stride_bytes[0]); }

int32_t dlab_linear(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, const dlab_tensor* bias, dlab_tensor* y) {
  (void)ctx;
  if (!is_matrix(x) || !is_matrix(w) || !is_matrix(y)) return fail(DLAB_E_UNSUPPORTED, "linear: x, w and y must be dense f32 matrices");
  const int64_t rows = x->shape[0], width = x->shape[1], columns = w->shape[0];
  if (width != w->shape[1])
    return fail(DLAB_E_SHAPE, "linear: x has rows of %lld values, w of %lld", (long long)width, (long long)w->shape[1]);
  if (y->shape[0] != rows || y->shape[1] != columns) return fail(DLAB_E_SHAPE, "linear: y does not fit x and w");
  if (bias && bias->dtype != DLAB_F32) return fail(DLAB_E_UNSUPPORTED, "linear: bias must be f32");
  if (!fits(bias, columns)) return fail(DLAB_E_SHAPE, "linear: bias does not fit w");
  for (int64_t m = 0; m < rows; m++)
    for (int64_t n = 0; n < columns; n++) {
      float sum = 0;
      for (int64_t k = 0; k < width; k++) sum += row(x, m)[k] * row(w, n)[k];
      row(y, m)[n] = bias ? sum + ((const float*)bias->data)[n] : sum;
    }
  return DLAB_OK;
}

int32_t dlab_rms_norm(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, double eps, double weight_offset, int32_t n_groups,
                      dlab_tensor* y) {
  (void)ctx;
  if (!is_matrix(x) || !is_matrix(y)) return fail(DLAB_E_UNSUPPORTED, "rms_norm: x and y must be dense f32 matrices");
  if (x->shape[0] != y->shape[0] || x->shape[1] != y->shape[1]) return fail(DLAB_E_SHAPE, "rms_norm: x and y differ in shape");
  if (n_groups != 1) return fail(DLAB_E_UNSUPPORTED, "rms_norm: n_groups is %d, this engine has no grouped norm", n_groups);
  if (w && w->dtype != DLAB_F32) return fail(DLAB_E_UNSUPPORTED, "rms_norm: w must be f32");
  if (!fits(w, x->shape[1])) return fail(DLAB_E_SHAPE, "rms_norm: w does not fit x");
  for (int64_t r = 0; r < x->shape[0]; r++) {
    double sum = 0;
    for (int64_t i = 0; i < x->shape[1]; i++) sum += (double)row(x, r)[i] * row(x, r)[i];
    const float inverse = (float)(1.0 / sqrt(sum / (double)x->shape[1] + eps));
    for (int64_t i = 0; i < x->shape[1]; i++) {
      const float weight = w ? ((const float*)w->data)[i] + (float)weight_offset : 1.0f;
      row(y, r)[i] = row(x, r)[i] * inverse * weight;
    }
  }
  return DLAB_OK;
}
