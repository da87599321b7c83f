// The operations by name.
#include <algorithm>
#include <numeric>

#include "gpu/device_call.hpp"

namespace dlab::ops {

using gpu::DeviceCall;

namespace {

// Rows of f32 values as a table to gather from.
gpu::Matrix rows_of(const float* x, int64_t rows, int64_t width) {
  return {reinterpret_cast<const uint8_t*>(x), DLAB_F32, rows, width, width * 4};
}

}  // namespace

void squash(dlab_ctx& ctx, Rows x, double scale, double gain, Rows y) {
  DeviceCall call(ctx);
  gpu::squash(call.stream, call.in(x), x.rows * x.width, static_cast<float>(scale), static_cast<float>(gain), call.out(y));
  call.finish();
}

void silu(dlab_ctx& ctx, Rows x, double scale, Rows y) {
  DeviceCall call(ctx);
  gpu::silu(call.stream, call.in(x), x.rows * x.width, static_cast<float>(scale), call.out(y));
  call.finish();
}

void decay(dlab_ctx& ctx, Rows a, const float* a_log, const float* dt_bias, Rows y) {
  DeviceCall call(ctx);
  gpu::decay(call.stream, call.in(a), a.rows, a.width, call.in(a_log, a.width), call.in(dt_bias, a.width), call.out(y));
  call.finish();
}

void l2_norm(dlab_ctx& ctx, Rows x, int64_t n, double eps, double scale, Rows y) {
  DeviceCall call(ctx);
  gpu::l2_norm(call.stream, call.in(x), x.rows * x.width / n, n, eps, static_cast<float>(scale), call.out(y));
  call.finish();
}

void hc_read(dlab_ctx& ctx, Rows x, Rows g, int64_t streams, Rows y) {
  DeviceCall call(ctx);
  gpu::hc_read(call.stream, call.in(x), call.in(g), x.rows, streams, y.width, call.out(y));
  call.finish();
}

void hc_write(dlab_ctx& ctx, Rows x, Rows v, Rows inject, Rows y) {
  DeviceCall call(ctx);
  gpu::hc_write(call.stream, call.in(x), call.in(v), call.in(inject), x.rows, inject.width, v.width, call.out(y));
  call.finish();
}

void ple_gate(dlab_ctx& ctx, Rows key, Rows query, int64_t streams, Rows y) {
  DeviceCall call(ctx);
  gpu::ple_gate(call.stream, call.in(key), call.in(query), key.rows * streams, key.width / streams, call.out(y));
  call.finish();
}

void stream_gate(dlab_ctx& ctx, Rows x, Rows g, Rows y) {
  DeviceCall call(ctx);
  gpu::stream_gate(call.stream, call.in(x), call.in(g), x.rows, g.width, x.width, call.out(y));
  call.finish();
}

void markov_state(dlab_ctx& ctx, Rows state, Rows joint, Rows y) {
  DeviceCall call(ctx);
  gpu::markov_state(call.stream, call.in(state), call.in(joint), state.rows, state.width, call.out(y));
  call.finish();
}

void markov_output(dlab_ctx& ctx, Rows joint, Rows y) {
  DeviceCall call(ctx);
  gpu::markov_output(call.stream, call.in(joint), joint.rows, y.width, call.out(y));
  call.finish();
}

void short_conv(dlab_ctx& ctx, Rows x, Rows history, const float* w, int64_t taps, int64_t dilation, Rows y) {
  DeviceCall call(ctx);
  gpu::short_conv(call.stream, call.in(x), call.in(history), call.in(w, x.width * taps), x.rows, x.width, taps, dilation, call.out(y));
  call.finish();
}

void dynamic_conv(dlab_ctx& ctx, Rows x, Rows kernel, const float* base, int64_t taps, int64_t groups, int64_t side, Rows y) {
  DeviceCall call(ctx);
  const float* fixed = call.in(base, 2 * taps * x.width);
  gpu::dynamic_conv(call.stream, call.in(x), call.in(kernel), fixed, x.rows, x.width, taps, groups, side, call.out(y));
  call.finish();
}

void delta_state(dlab_ctx& ctx, const DeltaSizes& sizes, Rows start, Rows k, Rows v, Rows decay, Rows beta, Rows y) {
  DeviceCall call(ctx);
  gpu::delta_state(call.stream, sizes, call.in(start), call.in(k), call.in(v), call.in(decay), call.in(beta), call.out(y));
  call.finish();
}

void delta_read(dlab_ctx& ctx, const DeltaSizes& sizes, Rows state, Rows q, Rows y) {
  DeviceCall call(ctx);
  gpu::delta_read(call.stream, sizes, call.in(state), call.in(q), call.out(y));
  call.finish();
}

void block_mean(dlab_ctx& ctx, Rows x, int64_t ratio, Rows y) {
  DeviceCall call(ctx);
  gpu::block_mean(call.stream, call.in(x), y.rows, ratio, x.width, call.out(y));
  call.finish();
}

void index_scores(dlab_ctx& ctx, Rows q, int64_t heads, Rows k, const int64_t* pos, int64_t ratio, double scale, Rows y) {
  DeviceCall call(ctx);
  gpu::index_scores(call.stream, call.in(q), q.rows, heads, k.width, call.in(k), k.rows, call.in(pos, q.rows), ratio,
                    static_cast<float>(scale), call.out(y));
  call.finish();
}

void select_cells(dlab_ctx& ctx, Rows scores, const int64_t* pos, int64_t ratio, int64_t budget, Ids y) {
  DeviceCall call(ctx);
  gpu::select_cells(call.stream, call.in(scores), scores.rows, scores.width, call.in(pos, scores.rows), y.width, ratio, budget, call.out(y));
  call.finish();
}

void select(dlab_ctx& ctx, Rows scores, const float* bias, Ids y) {
  DeviceCall call(ctx);
  gpu::select(call.stream, call.in(scores), call.in(bias, scores.width), scores.rows, scores.width, y.width, call.out(y));
  call.finish();
}

void choose(dlab_ctx& ctx, Rows scores, const int64_t* candidates, int32_t* y) {
  DeviceCall call(ctx);
  const int32_t* ids = call.ids(candidates, scores.rows * scores.width);
  gpu::choose(call.stream, call.in(scores), ids, scores.rows, scores.width, call.out(Ids{y, scores.rows, 1, 1}));
  call.finish();
}

void selector_scores(dlab_ctx& ctx, Rows logits, const int64_t* candidates, Rows hidden, const int64_t* previous, const Weight& predecessor,
                     const Weight& successor, Rows y) {
  DeviceCall call(ctx);
  const int64_t rows = logits.rows, count = y.width, n = hidden.width;
  const int32_t* ids = call.ids(candidates, rows * count);
  float *before = call.floats(rows * n), *after = call.floats(rows * count * n);
  gpu::gather(call.stream, call.in(predecessor), call.ids(previous, rows), rows, 1.0f, before);
  gpu::gather(call.stream, call.in(successor), ids, rows * count, 1.0f, after);
  gpu::selector_scores(call.stream, call.in(logits), rows, logits.width, ids, count, call.in(hidden), before, after, n, call.out(y));
  call.finish();
}

void expert_weights(dlab_ctx& ctx, Rows scores, const int64_t* selected, bool normalise, double scale, Rows y) {
  DeviceCall call(ctx);
  const int32_t* ids = call.ids(selected, scores.rows * y.width);
  gpu::expert_weights(call.stream, call.in(scores), scores.rows, scores.width, ids, y.width, normalise, static_cast<float>(scale),
                      call.out(y));
  call.finish();
}

// The rows of an expert are brought side by side, so that its weights are read once, and the results back to their places.
void expert_linear(dlab_ctx& ctx, Rows x, const int64_t* selected, int64_t ranks, const std::vector<Weight>& experts, Rows y) {
  DeviceCall call(ctx);
  const int64_t width = experts.front().width, outputs = experts.front().rows, count = x.rows * ranks;
  const bool by_rank = x.width != width;
  std::vector<int64_t> order(static_cast<size_t>(count)), sources, places(order.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return selected[a] < selected[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    sources.push_back(by_rank ? order[i] : order[i] / ranks);
    places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  float *in = call.floats(count * width), *out = call.floats(count * outputs);
  gpu::gather(call.stream, rows_of(call.in(x), by_rank ? count : x.rows, width), call.ids(sources.data(), count), count, 1.0f, in);
  for (int64_t first = 0, next = 0; first < count; first = next) {
    const int64_t expert = selected[order[static_cast<size_t>(first)]];
    while (next < count && selected[order[static_cast<size_t>(next)]] == expert) ++next;
    const gpu::Matrix weights = call.in(experts[static_cast<size_t>(expert)]);
    gpu::linear(call.stream, in + first * width, next - first, weights, nullptr, out + first * outputs, gpu::context(ctx).products);
  }
  gpu::gather(call.stream, rows_of(out, count, outputs), call.ids(places.data(), count), count, 1.0f, call.out(y));
  call.finish();
}

void expert_sum(dlab_ctx& ctx, Rows x, Rows weights, Rows y) {
  DeviceCall call(ctx);
  gpu::expert_sum(call.stream, call.in(x), call.in(weights), x.rows, weights.width, y.width, call.out(y));
  call.finish();
}

void ngram(dlab_ctx& ctx, const std::vector<Weight>& table, const std::vector<int64_t>& chosen, int64_t heads, Rows y) {
  DeviceCall call(ctx);
  const int64_t width = y.width / heads;
  float* out = call.out(y);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto [shard, row] = row_in(table, chosen[i]);
    const Weight one{shard->row(row), shard->dtype, 1, shard->width, shard->row_bytes};
    gpu::dequant(call.stream, call.in(one), out + static_cast<int64_t>(i) * width);
  }
  call.finish();
}

}  // namespace dlab::ops
