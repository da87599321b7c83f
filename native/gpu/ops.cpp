// The operations behind the entry points.
#include "gpu/device_call.hpp"

namespace dlab::ops {

using gpu::DeviceCall;

void dequant(dlab_ctx& ctx, const Weight& w, Rows y) {
  DeviceCall call(ctx);
  gpu::dequant(call.stream, call.in(w), call.out(y));
  call.finish();
}

void convert(dlab_ctx& ctx, const Values& x, const Values& y) {
  DeviceCall call(ctx);
  const int64_t x_bytes = x.width * weight_format(x.dtype)->bytes, y_bytes = y.width * weight_format(y.dtype)->bytes;
  const void* from = call.bytes(x.data, x_bytes, x.rows, x.row_bytes);
  gpu::convert(call.stream, from, x.dtype, x.rows * x.width, call.out(y.data, y_bytes, y.rows, y.row_bytes), y.dtype);
  call.finish();
}

void rms_norm(dlab_ctx& ctx, Rows x, const float* w, int64_t w_size, double eps, double offset, int64_t groups, Rows y) {
  DeviceCall call(ctx);
  const bool shared = w && w_size == x.width / groups;
  gpu::rms_norm(call.stream, call.in(x), x.rows, x.width, groups, call.in(w, w_size), shared, eps, offset, call.out(y));
  call.finish();
}

void linear(dlab_ctx& ctx, Rows x, const Weight& w, const float* bias, Rows y) {
  DeviceCall call(ctx);
  gpu::linear(call.stream, call.in(x), x.rows, call.in(w), call.in(bias, w.rows), call.out(y), gpu::context(ctx).products);
  call.finish();
}

void rope(dlab_ctx& ctx, Rows x, const std::vector<float>& table, int64_t heads, int64_t rot, bool interleaved, Rows y) {
  DeviceCall call(ctx);
  const float* entries = call.in(table.data(), static_cast<int64_t>(table.size()));
  gpu::rope(call.stream, call.in(x), entries, x.rows, heads, x.width / heads, rot, interleaved, call.out(y));
  call.finish();
}

void attention(dlab_ctx& ctx, Rows q, int64_t heads, const Cells& k, const Cells& v, const uint8_t* visible, double scale,
               const float* sinks, Rows out) {
  DeviceCall call(ctx);
  const gpu::AttentionSizes sizes{q.rows, heads, k.kv_heads, k.dim, k.cells};
  const uint8_t* mask = call.in(visible, q.rows * k.cells);
  gpu::attention(call.stream, sizes, call.in(q), call.in(k), call.in(v), mask, static_cast<float>(scale), call.in(sinks, heads),
                  call.out(out));
  call.finish();
}

void gate(dlab_ctx& ctx, Rows x, Rows g, int64_t heads, bool softplus, Rows y) {
  DeviceCall call(ctx);
  const int64_t dim = x.width / heads;
  const bool per_value = g.width != heads || dim == 1;
  gpu::gate(call.stream, call.in(x), call.in(g), x.rows, heads, dim, per_value, softplus, call.out(y));
  call.finish();
}

void swiglu(dlab_ctx& ctx, Rows gate, Rows up, bool gelu, Rows y) {
  DeviceCall call(ctx);
  gpu::swiglu(call.stream, call.in(gate), call.in(up), gate.rows * gate.width, gelu, call.out(y));
  call.finish();
}

void add(dlab_ctx& ctx, Rows a, Rows b, Rows y) {
  DeviceCall call(ctx);
  gpu::add(call.stream, call.in(a), call.in(b), a.rows * a.width, call.out(y));
  call.finish();
}

void gather(dlab_ctx& ctx, const Weight& table, const int32_t* ids, double scale, Rows y) {
  DeviceCall call(ctx);
  gpu::gather(call.stream, call.in(table), call.in(ids, y.rows), y.rows, static_cast<float>(scale), call.out(y));
  call.finish();
}

void concat(dlab_ctx& ctx, const std::vector<Rows>& parts, Rows y) {
  DeviceCall call(ctx);
  auto* to = static_cast<char*>(static_cast<void*>(call.out(y)));
  for (const Rows& part : parts) {
    const int64_t bytes = part.width * 4;
    if (const float* from = call.in(part))
      gpu::backend::copy(call.stream, to, y.width * 4, from, bytes, bytes, part.rows, gpu::Direction::Across, gpu::Site());
    to += bytes;
  }
  call.finish();
}

void top2(dlab_ctx& ctx, Rows x, int32_t* ids, float* values) {
  DeviceCall call(ctx);
  auto* indices = static_cast<int32_t*>(call.out(ids, 8, x.rows, 8));
  auto* best = static_cast<float*>(call.out(values, 8, x.rows, 8));
  gpu::top2(call.stream, call.in(x), x.rows, x.width, indices, best);
  call.finish();
}

void softmax(dlab_ctx& ctx, Rows x, double scale, Rows y) {
  DeviceCall call(ctx);
  gpu::softmax(call.stream, call.in(x), x.rows, x.width, static_cast<float>(scale), call.out(y));
  call.finish();
}

void softcap(dlab_ctx& ctx, Rows x, double scale, double cap, Rows y) {
  DeviceCall call(ctx);
  gpu::softcap(call.stream, call.in(x), x.rows * x.width, static_cast<float>(scale), static_cast<float>(cap), call.out(y));
  call.finish();
}

}  // namespace dlab::ops
