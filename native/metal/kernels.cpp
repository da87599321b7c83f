// The operations of the shared host code as dispatches of Metal kernels.
#include "gpu/kernels.hpp"

#include <string>

#include "cpu/apply.hpp"
#include "launch.hpp"
#include "sizes.h"

namespace dlab {

// Moves without arithmetic are left to the caller: they would go to the device and come back as they were.
std::vector<const Operation*> operation_tables() { return {kTables, kStreams, kSequences, kChoices, kExperts}; }

namespace gpu {

const bool backend::heads = true;

namespace {

// As the kernels of a format are named.
const char* format_name(int32_t dtype) {
  switch (dtype) {
    case DLAB_F16: return "f16";
    case DLAB_BF16: return "bf16";
    case DLAB_Q8_0: return "q8_0";
    case DLAB_Q4_0: return "q4_0";
    case DLAB_Q4_1: return "q4_1";
    case DLAB_Q5_0: return "q5_0";
    case DLAB_Q4_K: return "q4_k";
    case DLAB_Q5_K: return "q5_k";
    case DLAB_Q6_K: return "q6_k";
    default: return "f32";
  }
}

void decode_rows(StreamHandle stream, const Matrix& table, const int32_t* ids, int64_t rows, float scale, float* y) {
  const sizes::Gather n{rows, table.width, table.row_bytes, table.rows, scale, ids != nullptr};
  const std::string kernel = std::string("gather_") + format_name(table.dtype);
  each(stream, kernel.c_str(), rows * ceil_div(table.width, 4), {memory(table.data), memory_or(ids, y), memory(y), value(n)});
}

}  // namespace

void dequant(StreamHandle stream, const Matrix& w, float* y) { decode_rows(stream, w, nullptr, w.rows, 1.0f, y); }

void gather(StreamHandle stream, const Matrix& table, const int32_t* ids, int64_t rows, float scale, float* y) {
  decode_rows(stream, table, ids, rows, scale, y);
}

void convert(StreamHandle stream, const void* x, int32_t x_dtype, int64_t n, void* y, int32_t y_dtype) {
  each(stream, "convert", n, {memory(x), memory(y), value(sizes::Convert{n, x_dtype, y_dtype})});
}

void linear(StreamHandle stream, const float* x, int64_t m, const Matrix& w, const float* bias, float* y, Products products) {
  if (m == 0 || w.rows == 0) return;
  constexpr int64_t kThreads = 128;
  const sizes::Linear n{m, w.width, w.rows, w.row_bytes, bias != nullptr};
  const std::vector<Argument> arguments = {memory_or(x, y), memory_or(w.data, y), memory_or(bias, y), memory(y), value(n)};
  if (products == Products::MatrixUnits && (w.dtype == DLAB_F16 || w.dtype == DLAB_BF16)) {
    const std::string kernel = std::string("linear_simdgroup_") + format_name(w.dtype);
    dispatch(stream, kernel.c_str(), {ceil_div(w.rows, 32), ceil_div(m, 16)}, kThreads, arguments);
    return;
  }
  const int64_t rows = m == 1 ? 1 : m <= 4 ? 4 : 16;
  const std::string kernel = std::string("linear_") + format_name(w.dtype) + "_" + std::to_string(rows);
  dispatch(stream, kernel.c_str(), {ceil_div(w.rows, 16), ceil_div(m, rows)}, kThreads, arguments);
}

void rms_norm(StreamHandle stream, const float* x, int64_t rows, int64_t width, int64_t groups, const float* w, bool shared, double eps,
              double offset, float* y) {
  if (rows == 0 || width == 0) return;
  const sizes::RmsNorm n{width / groups, groups, static_cast<float>(eps), static_cast<float>(offset), w != nullptr, shared};
  dispatch(stream, "rms_norm", {rows * groups}, kRowThreads, {memory(x), memory_or(w, y), memory(y), value(n)});
}

void rope(StreamHandle stream, const float* x, const float* table, int64_t rows, int64_t heads, int64_t dim, int64_t rot, bool interleaved,
          float* y) {
  const sizes::Rope n{rows * heads, heads, dim, rot, interleaved};
  each(stream, "rope", rows * heads * (dim - rot / 2), {memory(x), memory_or(table, y), memory(y), value(n)});
}

void attention(StreamHandle stream, const AttentionSizes& s, const float* q, CellRows k, CellRows v, const uint8_t* visible, float scale,
               const float* sinks, float* out) {
  if (s.rows == 0 || s.heads == 0 || s.dim == 0) return;
  if (s.dim > kMaxHeadDim) fail(DLAB_E_UNSUPPORTED, "heads of %lld values, this library takes up to %lld", ll(s.dim), ll(kMaxHeadDim));
  constexpr int64_t kHeads = 4, kThreads = 128;  // of a threadgroup of attention.metal
  const char* kernel = s.dim <= 128 ? "attention_128" : s.dim <= 256 ? "attention_256" : "attention_512";
  const sizes::Attention n{s.rows, s.heads, s.kv_heads, s.dim, s.cells, scale, k.dtype, v.dtype, visible != nullptr, sinks != nullptr};
  dispatch(stream, kernel, {s.rows, s.kv_heads, ceil_div(s.heads / s.kv_heads, kHeads)}, kThreads,
           {memory(q), memory_or(k.data, out), memory_or(v.data, out), memory_or(visible, out), memory_or(sinks, out), memory(out), value(n)});
}

void gate(StreamHandle stream, const float* x, const float* g, int64_t rows, int64_t heads, int64_t dim, bool per_value, bool softplus,
          float* y) {
  const sizes::Gate n{rows * heads * dim, per_value ? 1 : dim, softplus};
  each(stream, "gate", n.count, {memory(x), memory(g), memory(y), value(n)});
}

void swiglu(StreamHandle stream, const float* gate, const float* up, int64_t n, bool gelu, float* y) {
  each(stream, "swiglu", n, {memory(gate), memory(up), memory(y), value(sizes::SwiGlu{n, gelu})});
}

void add(StreamHandle stream, const float* a, const float* b, int64_t n, float* y) {
  each(stream, "add", n, {memory(a), memory(b), memory(y), value(n)});
}

void softmax(StreamHandle stream, const float* x, int64_t rows, int64_t width, float scale, float* y) {
  if (rows == 0 || width == 0) return;
  dispatch(stream, "softmax", {rows}, 32, {memory(x), memory(y), value(sizes::Rows{rows, width, scale})});
}

void softcap(StreamHandle stream, const float* x, int64_t n, float scale, float cap, float* y) {
  each(stream, "softcap", n, {memory(x), memory(y), value(sizes::Softcap{n, scale, cap})});
}

void top2(StreamHandle stream, const float* x, int64_t rows, int64_t width, int32_t* ids, float* values) {
  if (rows == 0) return;
  dispatch(stream, "top2", {rows}, kRowThreads, {memory_or(x, values), memory(ids), memory(values), value(sizes::Rows{rows, width, 1.0f})});
}

void copy_on_device(StreamHandle stream, void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows,
                    Site site) {
  if (to_pitch == width && from_pitch == width) {
    width *= rows;
    rows = 1;
  }
  const auto even = [](int64_t n) { return n % 16 == 0; };
  const bool wide = even(width) && even(to_pitch) && even(from_pitch) && even(reinterpret_cast<intptr_t>(to)) &&
                    even(reinterpret_cast<intptr_t>(from));
  const int64_t unit = wide ? 16 : 1;
  const sizes::Copy n{rows, width / unit, to_pitch / unit, from_pitch / unit};
  each(stream, wide ? "copy_rows_16" : "copy_rows_1", n.rows * n.width, {memory(from), memory(to), value(n)}, site);
}

}  // namespace gpu
}  // namespace dlab
