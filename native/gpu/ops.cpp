// The operations behind the entry points: operands go to the device (or are there), one kernel runs, the result comes back.
#include "cpu/ops.hpp"

#include <cmath>
#include <cstring>

#include "formats.hpp"
#include "gpu/gpu.hpp"

namespace dlab::ops {

namespace {

using namespace dlab::gpu;

// The operands of one call. Results are copied back by finish(); a result on the device is not waited for.
class Call {
 public:
  explicit Call(dlab_ctx& ctx) : stream(context(ctx).stream) {}

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

  CellRows in(const Cells& c) {
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

  float* out(Rows y) { return static_cast<float*>(out(y.data, y.width * 4, y.rows, y.stride * 4)); }

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

  uint8_t* fresh(int64_t bytes) {
    buffers_.emplace_back(bytes);
    return buffers_.back().get();
  }

  std::vector<Buffer<uint8_t>> buffers_;
  std::vector<Result> results_;
};

}  // namespace

std::vector<float> rope_table(const int64_t* pos, int64_t rows, const double* inv_freq, int64_t pairs, double mscale) {
  std::vector<float> table(static_cast<size_t>(rows * pairs * 2));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(pos[r]) * inv_freq[i];
      float* entry = table.data() + (r * pairs + i) * 2;
      entry[0] = static_cast<float>(std::cos(angle) * mscale);
      entry[1] = static_cast<float>(std::sin(angle) * mscale);
    }
  return table;
}

void dequant(dlab_ctx& ctx, const Weight& w, Rows y) {
  Call call(ctx);
  gpu::dequant(call.stream, call.in(w), call.out(y));
  call.finish();
}

void convert(dlab_ctx& ctx, const Values& x, const Values& y) {
  Call call(ctx);
  const int64_t x_bytes = x.width * weight_format(x.dtype)->bytes, y_bytes = y.width * weight_format(y.dtype)->bytes;
  const void* from = call.bytes(x.data, x_bytes, x.rows, x.row_bytes);
  gpu::convert(call.stream, from, x.dtype, x.rows * x.width, call.out(y.data, y_bytes, y.rows, y.row_bytes), y.dtype);
  call.finish();
}

void rms_norm(dlab_ctx& ctx, Rows x, const float* w, int64_t w_size, double eps, double offset, int64_t groups, Rows y) {
  Call call(ctx);
  const bool shared = w && w_size == x.width / groups;
  gpu::rms_norm(call.stream, call.in(x), x.rows, x.width, groups, call.in(w, w_size), shared, eps, offset, call.out(y));
  call.finish();
}

void linear(dlab_ctx& ctx, Rows x, const Weight& w, const float* bias, Rows y) {
  Call call(ctx);
  gpu::linear(call.stream, call.in(x), x.rows, call.in(w), call.in(bias, w.rows), call.out(y));
  call.finish();
}

void rope(dlab_ctx& ctx, Rows x, const std::vector<float>& table, int64_t heads, int64_t rot, bool interleaved, Rows y) {
  Call call(ctx);
  const float* entries = call.in(table.data(), static_cast<int64_t>(table.size()));
  gpu::rope(call.stream, call.in(x), entries, x.rows, heads, x.width / heads, rot, interleaved, call.out(y));
  call.finish();
}

void attention(dlab_ctx& ctx, Rows q, int64_t heads, const Cells& k, const Cells& v, const uint8_t* visible, double scale,
               const float* sinks, Rows out) {
  Call call(ctx);
  const AttentionSizes sizes{q.rows, heads, k.kv_heads, k.dim, k.cells};
  const uint8_t* mask = call.in(visible, q.rows * k.cells);
  gpu::attention(call.stream, sizes, call.in(q), call.in(k), call.in(v), mask, static_cast<float>(scale), call.in(sinks, heads),
                  call.out(out));
  call.finish();
}

void gate(dlab_ctx& ctx, Rows x, Rows g, int64_t heads, bool softplus, Rows y) {
  Call call(ctx);
  const int64_t dim = x.width / heads;
  const bool per_value = g.width != heads || dim == 1;
  gpu::gate(call.stream, call.in(x), call.in(g), x.rows, heads, dim, per_value, softplus, call.out(y));
  call.finish();
}

void swiglu(dlab_ctx& ctx, Rows gate, Rows up, bool gelu, Rows y) {
  Call call(ctx);
  gpu::swiglu(call.stream, call.in(gate), call.in(up), gate.rows * gate.width, gelu, call.out(y));
  call.finish();
}

void add(dlab_ctx& ctx, Rows a, Rows b, Rows y) {
  Call call(ctx);
  gpu::add(call.stream, call.in(a), call.in(b), a.rows * a.width, call.out(y));
  call.finish();
}

void gather(dlab_ctx& ctx, const Weight& table, const int32_t* ids, double scale, Rows y) {
  Call call(ctx);
  gpu::gather(call.stream, call.in(table), call.in(ids, y.rows), y.rows, static_cast<float>(scale), call.out(y));
  call.finish();
}

void concat(dlab_ctx& ctx, const std::vector<Rows>& parts, Rows y) {
  Call call(ctx);
  auto* to = static_cast<char*>(static_cast<void*>(call.out(y)));
  for (const Rows& part : parts) {
    if (const float* from = call.in(part))
      backend::copy(call.stream, to, y.width * 4, from, part.width * 4, part.width * 4, part.rows, Direction::Across, Site());
    to += part.width * 4;
  }
  call.finish();
}

void top2(dlab_ctx& ctx, Rows x, int32_t* ids, float* values) {
  Call call(ctx);
  auto* indices = static_cast<int32_t*>(call.out(ids, 8, x.rows, 8));
  auto* best = static_cast<float*>(call.out(values, 8, x.rows, 8));
  gpu::top2(call.stream, call.in(x), x.rows, x.width, indices, best);
  call.finish();
}

void softmax(dlab_ctx& ctx, Rows x, double scale, Rows y) {
  Call call(ctx);
  gpu::softmax(call.stream, call.in(x), x.rows, x.width, static_cast<float>(scale), call.out(y));
  call.finish();
}

void softcap(dlab_ctx& ctx, Rows x, double scale, double cap, Rows y) {
  Call call(ctx);
  gpu::softcap(call.stream, call.in(x), x.rows * x.width, static_cast<float>(scale), static_cast<float>(cap), call.out(y));
  call.finish();
}

}  // namespace dlab::ops
