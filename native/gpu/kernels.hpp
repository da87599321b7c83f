// The operations on dense device memory: each launches its kernel on a stream and returns. Sizes have been validated; a size of 0 does
// nothing. A row's result depends on no other row.
#pragma once

#include <cstdint>

#include "gpu/device.hpp"

namespace dlab::gpu {

// Stored weights [rows][row_bytes].
struct Matrix {
  const uint8_t* data = nullptr;
  int32_t dtype = 0;
  int64_t rows = 0, width = 0, row_bytes = 0;
};

// Keys or values [cells][kv_heads][dim] in F32, F16 or BF16.
struct CellRows {
  const void* data = nullptr;
  int32_t dtype = 0;
};

struct AttentionSizes {
  int64_t rows, heads, kv_heads, dim, cells;
};

constexpr int64_t kMaxHeadDim = 512;

// y [rows][width]
void dequant(StreamHandle, const Matrix& w, float* y);
// y[r] = scale * row ids[r] of the table
void gather(StreamHandle, const Matrix& table, const int32_t* ids, int64_t rows, float scale, float* y);
// x [n] to y [n], each F32, F16 or BF16, to nearest even
void convert(StreamHandle, const void* x, int32_t x_dtype, int64_t n, void* y, int32_t y_dtype);
// y [m][w.rows] = x [m][w.width] w^T + bias; bias may be nullptr
void linear(StreamHandle, const float* x, int64_t m, const Matrix& w, const float* bias, float* y);
// over each of `groups` parts of a row of x [rows][width]; w nullptr, [width] or, shared, [width/groups]
void rms_norm(StreamHandle, const float* x, int64_t rows, int64_t width, int64_t groups, const float* w, bool shared, double eps,
              double offset, float* y);
// x, y [rows][heads][dim]; table [rows][rot/2][2]: cos and sin
void rope(StreamHandle, const float* x, const float* table, int64_t rows, int64_t heads, int64_t dim, int64_t rot, bool interleaved,
          float* y);
// visible [rows][cells] bytes or nullptr for all; sinks [heads] or nullptr
void attention(StreamHandle, const AttentionSizes&, const float* q, CellRows k, CellRows v, const uint8_t* visible, float scale,
               const float* sinks, float* out);
// x, y [rows][heads][dim]; g [rows][heads], or with per_value [rows][heads][dim]
void gate(StreamHandle, const float* x, const float* g, int64_t rows, int64_t heads, int64_t dim, bool per_value, bool softplus, float* y);
void swiglu(StreamHandle, const float* gate, const float* up, int64_t n, bool gelu, float* y);
void add(StreamHandle, const float* a, const float* b, int64_t n, float* y);
void softmax(StreamHandle, const float* x, int64_t rows, int64_t width, float scale, float* y);
void softcap(StreamHandle, const float* x, int64_t n, float scale, float cap, float* y);
// ids [rows][2], values [rows][2]; ties to the lowest index, NaN never, -1 and NaN where nothing is left
void top2(StreamHandle, const float* x, int64_t rows, int64_t width, int32_t* ids, float* values);

}  // namespace dlab::gpu
