// What the single operations share: operands go to the device (or are there), a kernel runs, the result comes back.
#pragma once

#include <list>
#include <vector>

#include "cpu/ops.hpp"
#include "formats.hpp"
#include "gpu/gpu.hpp"

namespace dlab::gpu {

// The operands of one call. Results are copied back by finish(); a result on the device is not waited for.
class DeviceCall {
 public:
  explicit DeviceCall(dlab_ctx& ctx) : stream(context(ctx).stream) {}

  const StreamHandle stream;

  const void* bytes(const void* host, int64_t row_bytes, int64_t rows, int64_t stride) {
    if (rows * row_bytes == 0) return nullptr;
    if (backend::on_device(host)) return host;
    uint8_t* to = fresh(rows * row_bytes);
    backend::copy(stream, to, row_bytes, host, stride, row_bytes, rows, Direction::Up, Site());
    return to;
  }

  const float* in(Rows x) { return static_cast<const float*>(bytes(x.data, x.width * 4, x.rows, x.stride * 4)); }

  template <class T>
  const T* in(const T* values, int64_t count) {
    const auto size = static_cast<int64_t>(sizeof(T)) * count;
    return values ? static_cast<const T*>(bytes(values, size, 1, size)) : nullptr;
  }

  Matrix in(const Weight& w) {
    const Format& format = *weight_format(w.dtype);
    const int64_t dense = w.width / format.block * format.bytes;
    return {static_cast<const uint8_t*>(bytes(w.data, dense, w.rows, w.row_bytes)), w.dtype, w.rows, w.width, dense};
  }

  CellRows in(const ops::Cells& c) {
    const int64_t dense = c.kv_heads * c.dim * weight_format(c.dtype)->bytes;
    return {bytes(c.data, dense, c.cells, c.cell_bytes), c.dtype};
  }

  void* out(void* host, int64_t row_bytes, int64_t rows, int64_t stride) {
    if (rows * row_bytes == 0) return nullptr;
    if (backend::on_device(host)) return host;
    uint8_t* from = fresh(rows * row_bytes);
    results_.push_back({host, from, row_bytes, rows, stride});
    return from;
  }

  int32_t* out(ops::Ids y) { return static_cast<int32_t*>(out(y.data, y.width * 4, y.rows, y.stride * 4)); }
  float* out(Rows y) { return static_cast<float*>(out(y.data, y.width * 4, y.rows, y.stride * 4)); }

  // Ids that a kernel takes as int32: those beyond it are -1, which no table has.
  const int32_t* ids(const int64_t* values, int64_t count) {
    std::vector<int32_t>& narrow = ids_.emplace_back();
    for (int64_t i = 0; i < count; ++i) narrow.push_back(values[i] < 0 || values[i] > INT32_MAX ? -1 : static_cast<int32_t>(values[i]));
    return in(narrow.data(), count);
  }

  // Memory of the device that lives as long as the call.
  uint8_t* fresh(int64_t bytes) {
    buffers_.emplace_back(bytes);
    return buffers_.back().get();
  }
  float* floats(int64_t count) { return reinterpret_cast<float*>(fresh(count * 4)); }

  void finish() {
    for (const Result& r : results_)
      backend::copy(stream, r.host, r.stride, r.device, r.row_bytes, r.row_bytes, r.rows, Direction::Down, Site());
    if (!results_.empty()) backend::wait(stream, Site());
  }

 private:
  struct Result {
    void* host;
    const void* device;
    int64_t row_bytes, rows, stride;
  };

  std::list<std::vector<int32_t>> ids_;
  std::vector<Buffer<uint8_t>> buffers_;
  std::vector<Result> results_;
};

}  // namespace dlab::gpu
