// The operations on validated data, spread over the context's threads. Shared by the entry points and the fused drafter, so both give
// the same bits.
#pragma once

#include <algorithm>
#include <vector>

#include "context.hpp"

namespace dlab::ops {

// work(row) for every row, over the threads; it must not throw.
template <class Work>
void each_row(dlab_ctx& ctx, int64_t rows, const Work& work) {
  ctx.pool.run(rows, [&](int64_t row, int) { work(row); });
}

// Keys or values: cells of kv_heads*dim stored values, cell_bytes apart.
struct Cells {
  const uint8_t* data;
  int32_t dtype;
  int64_t cells, kv_heads, dim, cell_bytes;
};

// Rows of F32, F16 or BF16 values, row_bytes apart.
struct Values {
  uint8_t* data;
  int32_t dtype;
  int64_t rows, width, row_bytes;
};

// cos and sin of pos * inv_freq, angles in double, rounded to f32: [row][pair][2].
std::vector<float> rope_table(const int64_t* pos, int64_t rows, const double* inv_freq, int64_t pairs, double mscale);

void dequant(dlab_ctx& ctx, const Weight& w, Rows y);
void convert(dlab_ctx& ctx, const Values& x, const Values& y);
void concat(dlab_ctx& ctx, const std::vector<Rows>& parts, Rows y);
// w: nullptr, or as many values as a group (shared) or a whole row has.
void rms_norm(dlab_ctx& ctx, Rows x, const float* w, int64_t w_size, double eps, double offset, int64_t groups, Rows y);
void linear(dlab_ctx& ctx, Rows x, const Weight& w, const float* bias, Rows y);
void rope(dlab_ctx& ctx, Rows x, const std::vector<float>& table, int64_t heads, int64_t rot, bool interleaved, Rows y);
void attention(dlab_ctx& ctx, Rows q, int64_t heads, const Cells& k, const Cells& v, const uint8_t* visible, double scale,
               const float* sinks, Rows out);
void gate(dlab_ctx& ctx, Rows x, Rows g, int64_t heads, bool softplus, Rows y);
void swiglu(dlab_ctx& ctx, Rows gate, Rows up, bool gelu, Rows y);
void add(dlab_ctx& ctx, Rows a, Rows b, Rows y);
void gather(dlab_ctx& ctx, const Weight& table, const int32_t* ids, double scale, Rows y);
void top2(dlab_ctx& ctx, Rows x, int32_t* ids, float* values);
void softmax(dlab_ctx& ctx, Rows x, double scale, Rows y);
void softcap(dlab_ctx& ctx, Rows x, double scale, double cap, Rows y);

// The operations by name (dlab.h 1.1, operations by name), every operand checked.

// gain sigmoid(scale x)
void squash(dlab_ctx& ctx, Rows x, double scale, double gain, Rows y);
void silu(dlab_ctx& ctx, Rows x, double scale, Rows y);
// a_log, dt_bias [n]
void decay(dlab_ctx& ctx, Rows a, const float* a_log, const float* dt_bias, Rows y);
// over each n values of a row
void l2_norm(dlab_ctx& ctx, Rows x, int64_t n, double eps, double scale, Rows y);
void hc_read(dlab_ctx& ctx, Rows x, Rows g, int64_t streams, Rows y);
void hc_write(dlab_ctx& ctx, Rows x, Rows v, Rows inject, Rows y);
void ple_gate(dlab_ctx& ctx, Rows key, Rows query, int64_t streams, Rows y);
void stream_gate(dlab_ctx& ctx, Rows x, Rows g, Rows y);
// joint [R][3][n]
void markov_state(dlab_ctx& ctx, Rows state, Rows joint, Rows y);
void markov_output(dlab_ctx& ctx, Rows joint, Rows y);

// w [x.width][taps]; history: the (taps - 1) * dilation rows before x
void short_conv(dlab_ctx& ctx, Rows x, Rows history, const float* w, int64_t taps, int64_t dilation, Rows y);
// kernel [R][2][taps][groups], base [2][taps][n]
void dynamic_conv(dlab_ctx& ctx, Rows x, Rows kernel, const float* base, int64_t taps, int64_t groups, int64_t side, Rows y);
// One row of state per token: [heads][depth][n]; key_heads divides heads.
struct DeltaSizes {
  int64_t rows, heads, key_heads, depth, n;
};
// start [heads][depth * n]
void delta_state(dlab_ctx& ctx, const DeltaSizes& sizes, Rows start, Rows k, Rows v, Rows decay, Rows beta, Rows y);
void delta_read(dlab_ctx& ctx, const DeltaSizes& sizes, Rows state, Rows q, Rows y);
void block_mean(dlab_ctx& ctx, Rows x, int64_t ratio, Rows y);

// Rows of ids, stride of them apart.
struct Ids {
  int32_t* data;
  int64_t rows, width, stride;
  int32_t* row(int64_t r) const { return data + r * stride; }
};
// k [blocks][dim]; pos [R]
void index_scores(dlab_ctx& ctx, Rows q, int64_t heads, Rows k, const int64_t* pos, int64_t ratio, double scale, Rows y);
void select_cells(dlab_ctx& ctx, Rows scores, const int64_t* pos, int64_t ratio, int64_t budget, Ids y);
// bias [scores.width] or nullptr; y.width of them
void select(dlab_ctx& ctx, Rows scores, const float* bias, Ids y);
// candidates [R][scores.width]; y [R]
void choose(dlab_ctx& ctx, Rows scores, const int64_t* candidates, int32_t* y);
// candidates [R][y.width], previous [R]
void selector_scores(dlab_ctx& ctx, Rows logits, const int64_t* candidates, Rows hidden, const int64_t* previous, const Weight& predecessor,
                     const Weight& successor, Rows y);

// selected [R][y.width]: ids that exist
void expert_weights(dlab_ctx& ctx, Rows scores, const int64_t* selected, bool normalise, double scale, Rows y);
// selected [R][ranks]; x: one row for all ranks of a token, or [R][ranks][K]
void expert_linear(dlab_ctx& ctx, Rows x, const int64_t* selected, int64_t ranks, const std::vector<Weight>& experts, Rows y);
// x [R][ranks][n]
void expert_sum(dlab_ctx& ctx, Rows x, Rows weights, Rows y);

// chosen [R][heads]: rows of the joined table; y [R][heads * width]
void ngram(dlab_ctx& ctx, const std::vector<Weight>& table, const std::vector<int64_t>& chosen, int64_t heads, Rows y);
// Where a row of the joined table lies.
struct TableRow {
  const Weight* shard;
  int64_t row;
};
inline TableRow row_in(const std::vector<Weight>& table, int64_t row) {
  size_t shard = 0;
  while (row >= table[shard].rows) row -= table[shard++].rows;
  return {&table[shard], row};
}

// Complete blocks of a row at this position, of `blocks`.
inline int64_t complete_blocks(int64_t pos, int64_t ratio, int64_t blocks) { return std::min(blocks, (pos + 1) / ratio); }

// Leading drafts [n] that are what was picked after the row before them: picks [n+1].
inline int32_t accepted(const int32_t* drafts, int32_t n, const int32_t* picks) {
  int32_t count = 0;
  while (count < n && drafts[count] == picks[count]) ++count;
  return count;
}

// target_ids[id], -1 for ids outside.
void to_target(const std::vector<int64_t>& ids, const std::vector<int64_t>& target_ids, int32_t* out);

}  // namespace dlab::ops
