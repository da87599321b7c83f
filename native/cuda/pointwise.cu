// Operations on single values: one thread each, in strides of the grid.
#include "each.cuh"
#include "formats.cuh"
#include "gpu/kernels.hpp"

namespace dlab::gpu {
namespace {

template <class Format>
__global__ void gather_kernel(Matrix table, const int32_t* __restrict__ ids, int64_t rows, float scale, float* __restrict__ y) {
  const int64_t quads = (table.width + 3) / 4;
  DLAB_EACH(i, rows * quads) {
    const int64_t r = i / quads, at = i % quads * 4;
    const int64_t row = ids ? ids[r] : r;
    float w[4];
    if (row >= 0 && row < table.rows) {
      Format::quad(table.data + row * table.row_bytes, at, table.width, w);
    } else {
      for (float& value : w) value = nanf("");
    }
    for (int t = 0; t < 4 && at + t < table.width; ++t) y[r * table.width + at + t] = ids ? w[t] * scale : w[t];
  }
}

__device__ float widened(const void* x, int32_t dtype, int64_t i) {
  if (dtype == DLAB_F16) return __half2float(static_cast<const __half*>(x)[i]);
  if (dtype == DLAB_BF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i]);
  return static_cast<const float*>(x)[i];
}

__global__ void convert_kernel(const void* __restrict__ x, int32_t x_dtype, int64_t n, void* __restrict__ y, int32_t y_dtype) {
  DLAB_EACH(i, n) {
    const float value = widened(x, x_dtype, i);
    if (y_dtype == DLAB_F16) static_cast<__half*>(y)[i] = __float2half_rn(value);
    else if (y_dtype == DLAB_BF16) static_cast<__nv_bfloat16*>(y)[i] = __float2bfloat16_rn(value);
    else static_cast<float*>(y)[i] = value;
  }
}

// One thread per pair, and one per value that is not rotated.
__global__ void rope_kernel(const float* x, const float* __restrict__ table, int64_t vectors, int64_t heads, int64_t dim, int64_t rot,
                            bool interleaved, float* y) {
  const int64_t pairs = rot / 2, items = pairs + dim - rot, step = interleaved ? 1 : pairs;
  DLAB_EACH(i, vectors * items) {
    const int64_t vector = i / items, item = i % items, start = vector * dim;
    if (item >= pairs) {
      const int64_t at = start + rot + item - pairs;
      y[at] = x[at];
      continue;
    }
    const float* entry = table + (vector / heads * pairs + item) * 2;
    const int64_t low = start + (interleaved ? 2 * item : item);
    const float a = x[low], b = x[low + step], c = entry[0], s = entry[1];
    y[low] = a * c - b * s;
    y[low + step] = b * c + a * s;
  }
}

__global__ void gate_kernel(const float* __restrict__ x, const float* __restrict__ g, int64_t n, int64_t per_logit, bool use_softplus,
                            float* __restrict__ y) {
  DLAB_EACH(i, n) {
    const float logit = g[i / per_logit];
    y[i] = x[i] * (use_softplus ? softplus(logit) : sigmoid(logit));
  }
}

__global__ void swiglu_kernel(const float* __restrict__ gate, const float* __restrict__ up, int64_t n, bool gelu, float* __restrict__ y) {
  DLAB_EACH(i, n) y[i] = (gelu ? gelu_tanh(gate[i]) : gate[i] * sigmoid(gate[i])) * up[i];
}

__global__ void add_kernel(const float* a, const float* b, int64_t n, float* y) {
  DLAB_EACH(i, n) y[i] = a[i] + b[i];
}

__global__ void softcap_kernel(const float* __restrict__ x, int64_t n, float scale, float cap, float* __restrict__ y) {
  DLAB_EACH(i, n) {
    const float scaled = x[i] * scale;
    y[i] = cap > 0.0f ? cap * tanhf(scaled / cap) : scaled;
  }
}

void decode_rows(StreamHandle stream, const Matrix& table, const int32_t* ids, int64_t rows, float scale, float* y) {
  if (rows == 0 || table.width == 0) return;
  with_format(table.dtype, [&](auto format) {
    using Format = decltype(format);
    gather_kernel<Format><<<each_blocks(rows * ((table.width + 3) / 4)), kEachThreads, 0, stream_of(stream)>>>(table, ids, rows, scale, y);
  });
  check_launch("gather");
}

}  // namespace

void dequant(StreamHandle stream, const Matrix& w, float* y) { decode_rows(stream, w, nullptr, w.rows, 1.0f, y); }

void gather(StreamHandle stream, const Matrix& table, const int32_t* ids, int64_t rows, float scale, float* y) {
  decode_rows(stream, table, ids, rows, scale, y);
}

void convert(StreamHandle stream, const void* x, int32_t x_dtype, int64_t n, void* y, int32_t y_dtype) {
  if (n == 0) return;
  convert_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(x, x_dtype, n, y, y_dtype);
  check_launch("convert");
}

void rope(StreamHandle stream, const float* x, const float* table, int64_t rows, int64_t heads, int64_t dim, int64_t rot, bool interleaved,
          float* y) {
  const int64_t items = rows * heads * (dim - rot / 2);
  if (items == 0) return;
  rope_kernel<<<each_blocks(items), kEachThreads, 0, stream_of(stream)>>>(x, table, rows * heads, heads, dim, rot, interleaved, y);
  check_launch("rope");
}

void gate(StreamHandle stream, const float* x, const float* g, int64_t rows, int64_t heads, int64_t dim, bool per_value, bool softplus,
          float* y) {
  const int64_t n = rows * heads * dim;
  if (n == 0) return;
  gate_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(x, g, n, per_value ? 1 : dim, softplus, y);
  check_launch("gate");
}

void swiglu(StreamHandle stream, const float* gate, const float* up, int64_t n, bool gelu, float* y) {
  if (n == 0) return;
  swiglu_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(gate, up, n, gelu, y);
  check_launch("swiglu");
}

void add(StreamHandle stream, const float* a, const float* b, int64_t n, float* y) {
  if (n == 0) return;
  add_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(a, b, n, y);
  check_launch("add");
}

void softcap(StreamHandle stream, const float* x, int64_t n, float scale, float cap, float* y) {
  if (n == 0) return;
  softcap_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(x, n, scale, cap, y);
  check_launch("softcap");
}

}  // namespace dlab::gpu
