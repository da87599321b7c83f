// The operations on validated data, spread over the context's threads. Shared by the entry points and the fused drafter, so both give
// the same bits.
#pragma once

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

// gain sigmoid(scale x)
void squash(dlab_ctx& ctx, Rows x, double scale, double gain, Rows y);
// kernel [R][2][taps][groups], base [2][taps][n]
void dynamic_conv(dlab_ctx& ctx, Rows x, Rows kernel, const float* base, int64_t taps, int64_t groups, int64_t side, Rows y);
// joint [R][3][n]
void markov_state(dlab_ctx& ctx, Rows state, Rows joint, Rows y);
void markov_output(dlab_ctx& ctx, Rows joint, Rows y);

// Leading drafts [n] that are what was picked after the row before them: picks [n+1].
inline int32_t accepted(const int32_t* drafts, int32_t n, const int32_t* picks) {
  int32_t count = 0;
  while (count < n && drafts[count] == picks[count]) ++count;
  return count;
}

// Indices of the k largest of n scores (+ bias, unless nullptr), largest first, the lowest first on ties; NaN comes last.
void largest(const float* scores, const float* bias, int64_t n, int64_t k, int32_t* out);
// The candidate of the largest score, the first on ties; -1 when all are NaN.
int32_t choose(const float* scores, const int64_t* candidates, int64_t n);
// scores[c] = logits[id] + sum(predecessor[previous] hidden successor[id]) of one row; NaN for ids outside their tables.
void selector_scores(dlab_ctx& ctx, const float* logits, int64_t vocab, const int64_t* candidates, int64_t count, const float* hidden,
                     int64_t previous, const Weight& predecessor, const Weight& successor, float* scores);
// target_ids[id], -1 for ids outside.
void to_target(const std::vector<int64_t>& ids, const std::vector<int64_t>& target_ids, int32_t* out);

}  // namespace dlab::ops
