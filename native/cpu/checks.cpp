#include "checks.hpp"

#include <cmath>
#include <cstring>

#include "formats.hpp"

namespace dlab {

namespace {

struct Element {
  int64_t block, bytes;
};

Element element_of(const dlab_tensor& t, const char* name) {
  if (const Format* format = weight_format(t.dtype)) return {format->block, format->bytes};
  if (t.dtype == DLAB_I32) return {1, 4};
  if (t.dtype == DLAB_I64 || t.dtype == DLAB_F64) return {1, 8};
  fail(DLAB_E_DTYPE, "%s has the unknown dtype %d", name, t.dtype);
}

const char* dtype_name(int32_t dtype) {
  if (const Format* format = weight_format(dtype)) return format->name;
  switch (dtype) {
    case DLAB_I32: return "I32";
    case DLAB_I64: return "I64";
    case DLAB_F64: return "F64";
    default: return "unknown dtype";
  }
}

// Bytes of one index of the leading dimension when everything inside it is dense; one row for a vector.
int64_t dense_bytes(const dlab_tensor& t, const char* name) {
  const Element element = element_of(t, name);
  const int64_t last = t.shape[t.ndim - 1];
  if (last % element.block)
    fail(DLAB_E_SHAPE, "%s: rows of %lld values are not a multiple of the %lld-value block of %s", name, ll(last),
         ll(element.block), dtype_name(t.dtype));
  int64_t bytes = 0;
  if (__builtin_mul_overflow(last / element.block, element.bytes, &bytes)) fail(DLAB_E_SHAPE, "%s: size overflows", name);
  for (int i = t.ndim - 2; i >= 1; --i)
    if (__builtin_mul_overflow(bytes, t.shape[i], &bytes)) fail(DLAB_E_SHAPE, "%s: size overflows", name);
  return bytes;
}

bool empty(const dlab_tensor& t) {
  for (int i = 0; i < t.ndim; ++i)
    if (t.shape[i] == 0) return true;
  return false;
}

void require_strides(const dlab_tensor& t, const char* name) {
  const Element element = element_of(t, name);
  int64_t bytes = element.bytes;
  if (element.block == 1 && t.stride_bytes[t.ndim - 1] != element.bytes && t.shape[t.ndim - 1] > 1)
    fail(DLAB_E_UNSUPPORTED, "%s: values inside a row must be dense, found a stride of %lld bytes", name,
         ll(t.stride_bytes[t.ndim - 1]));
  bytes = t.shape[t.ndim - 1] / element.block * element.bytes;
  for (int i = t.ndim - 2; i >= 1; --i) {
    if (t.stride_bytes[i] != bytes && t.shape[i] > 1)
      fail(DLAB_E_UNSUPPORTED, "%s: axis %d must be dense (%lld bytes), found a stride of %lld bytes", name, i,
           ll(bytes), ll(t.stride_bytes[i]));
    bytes *= t.shape[i];
  }
  if (t.ndim < 2 || t.shape[0] < 2) return;
  int64_t span = 0;
  if (t.stride_bytes[0] < bytes)
    fail(DLAB_E_SHAPE, "%s: a row takes %lld bytes, but stride_bytes[0] is %lld", name, ll(bytes),
         ll(t.stride_bytes[0]));
  if (__builtin_mul_overflow(t.stride_bytes[0], t.shape[0], &span)) fail(DLAB_E_SHAPE, "%s: size overflows", name);
}

int64_t extent_bytes(const dlab_tensor& t) {
  const int64_t row = dense_bytes(t, "tensor");
  return t.ndim == 1 ? row : (t.shape[0] - 1) * t.stride_bytes[0] + row;
}

}  // namespace

std::string describe(const dlab_tensor& t) {
  std::string text = std::string(dtype_name(t.dtype)) + " [";
  for (int i = 0; i < t.ndim && i < 4; ++i) text += (i ? "," : "") + std::to_string(t.shape[i]);
  return text + "]";
}

void require_pointer(const void* pointer, const char* name) {
  if (!pointer) fail(DLAB_E_ARG, "%s is NULL", name);
}

void require_tensor(const dlab_tensor* t, const char* name, int ndim, std::initializer_list<int32_t> dtypes) {
  require_pointer(t, name);
  if (t->ndim < 1 || t->ndim > 4) fail(DLAB_E_SHAPE, "%s has %d dimensions, expected 1 to 4", name, t->ndim);
  for (int i = 0; i < t->ndim; ++i)
    if (t->shape[i] < 0) fail(DLAB_E_SHAPE, "%s: axis %d has the size %lld", name, i, ll(t->shape[i]));
  if (ndim && t->ndim != ndim) fail(DLAB_E_SHAPE, "%s has %d dimensions (%s), expected %d", name, t->ndim, describe(*t).c_str(), ndim);
  bool known = false;
  std::string expected;
  for (int32_t dtype : dtypes) {
    known = known || dtype == t->dtype;
    expected += std::string(expected.empty() ? "" : ", ") + dtype_name(dtype);
  }
  if (!known)
    fail(DLAB_E_DTYPE, "%s has dtype %d (%s), expected one of %s", name, t->dtype, dtype_name(t->dtype), expected.c_str());
  if (t->place != DLAB_HOST && t->place != DLAB_DEVICE) fail(DLAB_E_ARG, "%s: place %d is unknown", name, t->place);
  dense_bytes(*t, name);
  if (empty(*t)) return;
  require_strides(*t, name);
  require_pointer(t->data, name);
  const bool aligned32 = t->dtype == DLAB_F32 || t->dtype == DLAB_I32;
  if (aligned32 && reinterpret_cast<uintptr_t>(t->data) % 4)
    fail(DLAB_E_ARG, "%s: the address is not a multiple of 4 bytes", name);
  if (aligned32 && t->ndim > 1 && t->shape[0] > 1 && t->stride_bytes[0] % 4)
    fail(DLAB_E_UNSUPPORTED, "%s: a stride of %lld bytes is not a multiple of 4", name, ll(t->stride_bytes[0]));
}

void require_any(const dlab_tensor* t, const char* name) {
  require_tensor(t, name, 0, {DLAB_F32, DLAB_F16, DLAB_BF16, DLAB_Q8_0, DLAB_Q4_0, DLAB_Q4_1, DLAB_Q5_0, DLAB_Q4_K, DLAB_Q5_K, DLAB_Q6_K,
                              DLAB_I32, DLAB_I64, DLAB_F64});
}

void copy_rows(const dlab_tensor& from, const dlab_tensor& to) {
  if (empty(from)) return;
  const size_t bytes = static_cast<size_t>(dense_bytes(from, "tensor"));
  const int64_t rows = from.ndim == 1 ? 1 : from.shape[0];
  for (int64_t r = 0; r < rows; ++r) {
    const char* source = static_cast<const char*>(from.data) + (rows > 1 ? r * from.stride_bytes[0] : 0);
    memmove(static_cast<char*>(to.data) + (rows > 1 ? r * to.stride_bytes[0] : 0), source, bytes);
  }
}

void require_shape(const dlab_tensor* t, const char* name, std::initializer_list<int64_t> shape) {
  bool same = static_cast<int>(shape.size()) == t->ndim;
  std::string expected;
  int i = 0;
  for (int64_t size : shape) {
    same = same && (size < 0 || size == t->shape[i]);
    expected += (i++ ? "," : "") + (size < 0 ? std::string("*") : std::to_string(size));
  }
  if (!same) fail(DLAB_E_SHAPE, "%s is %s, expected shape [%s]", name, describe(*t).c_str(), expected.c_str());
}

Rows f32_rows(const dlab_tensor* t, const char* name, int ndim) {
  require_tensor(t, name, ndim, {DLAB_F32});
  const int64_t width = dense_bytes(*t, name) / 4;
  if (t->ndim == 1) return {static_cast<float*>(t->data), 1, width, width};
  return {static_cast<float*>(t->data), t->shape[0], width, t->shape[0] > 1 ? t->stride_bytes[0] / 4 : width};
}

Weight stored_weight(const dlab_tensor* t, const char* name, int ndim) {
  require_tensor(t, name, ndim, {DLAB_F32, DLAB_F16, DLAB_BF16, DLAB_Q8_0, DLAB_Q4_0, DLAB_Q4_1, DLAB_Q5_0, DLAB_Q4_K, DLAB_Q5_K,
                                 DLAB_Q6_K});
  const int64_t rows = t->ndim == 1 ? 1 : t->shape[0];
  const int64_t bytes = dense_bytes(*t, name);
  return {static_cast<const uint8_t*>(t->data), t->dtype, rows, t->shape[t->ndim - 1], rows > 1 ? t->stride_bytes[0] : bytes};
}

std::vector<float> weight_vector(dlab_ctx& ctx, const dlab_tensor* t, const char* name, int64_t length) {
  if (!t) return {};
  const Weight weight = stored_weight(t, name, 1);
  require_shape(t, name, {length});
  std::vector<float> values(static_cast<size_t>(length));
  if (length) ctx.kernels.decode(weight.dtype, weight.data, values.data(), length);
  return values;
}

void require_distinct(const dlab_tensor* y, const dlab_tensor* x, const char* y_name, const char* x_name) {
  if (empty(*y) || empty(*x)) return;
  const uintptr_t a = reinterpret_cast<uintptr_t>(y->data), b = reinterpret_cast<uintptr_t>(x->data);
  if (a < b + static_cast<uintptr_t>(extent_bytes(*x)) && b < a + static_cast<uintptr_t>(extent_bytes(*y)))
    fail(DLAB_E_ARG, "%s overlaps %s in memory", y_name, x_name);
}

void require_finite(double value, const char* name) {
  if (!std::isfinite(value)) fail(DLAB_E_ARG, "%s is %g, expected a finite number", name, value);
}

void require_ids(const int32_t* ids, int64_t n, int64_t limit, const char* name) {
  if (n) require_pointer(ids, name);
  for (int64_t i = 0; i < n; ++i)
    if (ids[i] < 0 || ids[i] >= limit)
      fail(DLAB_E_ARG, "%s[%lld] is %d, expected 0..%lld", name, ll(i), ids[i], ll(limit - 1));
}

}  // namespace dlab
