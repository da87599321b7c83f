// The operations by name as dispatches of Metal kernels.
#include <cmath>

#include "gpu/kernels.hpp"
#include "launch.hpp"
#include "sizes.h"

namespace dlab::gpu {

void squash(StreamHandle stream, const float* x, int64_t n, float scale, float gain, float* y) {
  each(stream, "squash", n, {memory(x), memory(y), value(sizes::Squash{n, scale, gain})});
}

void silu(StreamHandle stream, const float* x, int64_t n, float scale, float* y) {
  each(stream, "silu", n, {memory(x), memory(y), value(sizes::Squash{n, scale, 1.0f})});
}

void decay(StreamHandle stream, const float* a, int64_t rows, int64_t heads, const float* a_log, const float* dt_bias, float* y) {
  const sizes::Decay n{rows * heads, heads};
  each(stream, "decay", n.count, {memory(a), memory(a_log), memory(dt_bias), memory(y), value(n)});
}

void l2_norm(StreamHandle stream, const float* x, int64_t vectors, int64_t n, double eps, float scale, float* y) {
  if (vectors == 0 || n == 0) return;
  dispatch(stream, "l2_norm", {vectors}, kRowThreads, {memory(x), memory(y), value(sizes::L2Norm{n, static_cast<float>(eps), scale})});
}

void hc_read(StreamHandle stream, const float* x, const float* g, int64_t rows, int64_t streams, int64_t n, float* y) {
  each(stream, "hc_read", rows * n, {memory(x), memory(g), memory(y), value(sizes::Streams{rows, streams, n})});
}

void hc_write(StreamHandle stream, const float* x, const float* v, const float* inject, int64_t rows, int64_t streams, int64_t n, float* y) {
  each(stream, "hc_write", rows * streams * n, {memory(x), memory(v), memory(inject), memory(y), value(sizes::Streams{rows, streams, n})});
}

void ple_gate(StreamHandle stream, const float* key, const float* query, int64_t vectors, int64_t n, float* y) {
  if (vectors == 0) return;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(n)));
  dispatch(stream, "ple_gate", {vectors}, 32, {memory_or(key, y), memory_or(query, y), memory(y), value(sizes::PleGate{n, root})});
}

void stream_gate(StreamHandle stream, const float* x, const float* g, int64_t rows, int64_t streams, int64_t n, float* y) {
  each(stream, "stream_gate", rows * streams * n, {memory(x), memory(g), memory(y), value(sizes::Streams{rows, streams, n})});
}

void markov_state(StreamHandle stream, const float* state, const float* joint, int64_t rows, int64_t n, float* y) {
  each(stream, "markov_state", rows * n, {memory(state), memory(joint), memory(y), value(sizes::Streams{rows, 3, n})});
}

void markov_output(StreamHandle stream, const float* joint, int64_t rows, int64_t n, float* y) {
  each(stream, "markov_output", rows * n, {memory(joint), memory(y), value(sizes::Streams{rows, 3, n})});
}

void short_conv(StreamHandle stream, const float* x, const float* history, const float* w, int64_t rows, int64_t channels, int64_t taps,
                int64_t dilation, float* y) {
  const sizes::ShortConv n{rows, channels, taps, dilation};
  each(stream, "short_conv", rows * channels, {memory(x), memory_or(history, x), memory(w), memory(y), value(n)});
}

void dynamic_conv(StreamHandle stream, const float* x, const float* kernel, const float* base, int64_t rows, int64_t n, int64_t taps,
                  int64_t groups, int64_t side, float* y) {
  const sizes::DynamicConv sizes{rows, n, taps, groups, side};
  each(stream, "dynamic_conv", rows * n, {memory(x), memory(kernel), memory(base), memory(y), value(sizes)});
}

void delta_state(StreamHandle stream, const ops::DeltaSizes& s, const float* start, const float* k, const float* v, const float* decay,
                 const float* beta, float* y) {
  if (s.rows == 0) return;
  const sizes::Delta n{s.rows, s.heads, s.key_heads, s.depth, s.n};
  each(stream, "delta_state", s.heads * s.n,
       {memory_or(start, y), memory_or(k, y), memory(v), memory(decay), memory(beta), memory(y), value(n)});
}

void delta_read(StreamHandle stream, const ops::DeltaSizes& s, const float* state, const float* q, float* y) {
  const sizes::Delta n{s.rows, s.heads, s.key_heads, s.depth, s.n};
  each(stream, "delta_read", s.rows * s.heads * s.n, {memory_or(state, y), memory_or(q, y), memory(y), value(n)});
}

void block_mean(StreamHandle stream, const float* x, int64_t blocks, int64_t ratio, int64_t width, float* y) {
  each(stream, "block_mean", blocks * width, {memory(x), memory(y), value(sizes::BlockMean{blocks, ratio, width})});
}

void index_scores(StreamHandle stream, const float* q, int64_t rows, int64_t heads, int64_t dim, const float* k, int64_t blocks,
                  const int64_t* pos, int64_t ratio, float scale, float* y) {
  if (rows * blocks == 0) return;
  const sizes::IndexScores n{heads, dim, blocks, ratio, scale};
  dispatch(stream, "index_scores", {blocks, rows}, 32, {memory_or(q, y), memory_or(k, y), memory(pos), memory(y), value(n)});
}

void select_cells(StreamHandle stream, const float* scores, int64_t rows, int64_t blocks, const int64_t* pos, int64_t cells, int64_t ratio,
                  int64_t budget, int32_t* y) {
  if (rows * cells == 0) return;
  const sizes::SelectCells n{blocks, cells, ratio, budget};
  dispatch(stream, "select_cells", {rows}, kRowThreads, {memory_or(scores, y), memory(pos), memory(y), value(n)});
}

void select(StreamHandle stream, const float* scores, const float* bias, int64_t rows, int64_t width, int64_t k, int32_t* y) {
  if (rows == 0 || k == 0) return;
  const sizes::Select n{width, k, bias != nullptr};
  dispatch(stream, "select_best", {rows}, kRowThreads, {memory(scores), memory_or(bias, scores), memory(y), value(n)});
}

void choose(StreamHandle stream, const float* scores, const int32_t* candidates, int64_t rows, int64_t count, int32_t* y) {
  each(stream, "choose", rows, {memory_or(scores, y), memory_or(candidates, y), memory(y), value(sizes::Rows{rows, count, 1.0f})});
}

void selector_scores(StreamHandle stream, const float* logits, int64_t rows, int64_t vocab, const int32_t* candidates, int64_t count,
                     const float* hidden, const float* before, const float* after, int64_t n, float* y) {
  if (rows * count == 0) return;
  dispatch(stream, "selector_scores", {count, rows}, 32,
           {memory_or(logits, y), memory(candidates), memory_or(hidden, y), memory_or(before, y), memory_or(after, y), memory(y),
            value(sizes::SelectorScores{vocab, count, n})});
}

void to_target(StreamHandle stream, const int32_t* ids, int64_t n, const int64_t* target_ids, int64_t count, int32_t* y) {
  each(stream, "to_target", n, {memory(ids), memory_or(target_ids, y), memory(y), value(sizes::Rows{n, count, 1.0f})});
}

void expert_weights(StreamHandle stream, const float* scores, int64_t rows, int64_t experts, const int32_t* selected, int64_t ranks,
                    bool normalise, float scale, float* y) {
  const sizes::Experts n{rows, experts, ranks, scale, normalise};
  each(stream, "expert_weights", rows * ranks, {memory(scores), memory(selected), memory(y), value(n)});
}

void expert_sum(StreamHandle stream, const float* x, const float* weights, int64_t rows, int64_t ranks, int64_t n, float* y) {
  each(stream, "expert_sum", rows * n, {memory_or(x, y), memory_or(weights, y), memory(y), value(sizes::Streams{rows, ranks, n})});
}

}  // namespace dlab::gpu
