// The operations on dense device memory: each launches its kernel on a stream and returns. Sizes have been validated; a size of 0 does
// nothing. A row's result depends on no other row. Formulas and axes: dlab.h.
#pragma once

#include "cpu/ops.hpp"
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

// How products are formed: in lanes of f32 FMAs, or for 16-bit weights on the device's matrix units, where activations are rounded to the
// weights' format.
enum class Products { Lanes, MatrixUnits };

// y [rows][width]
void dequant(StreamHandle, const Matrix& w, float* y);
// y[r] = scale * row ids[r] of the table, NaN for an id that it does not have
void gather(StreamHandle, const Matrix& table, const int32_t* ids, int64_t rows, float scale, float* y);
// x [n] to y [n], each F32, F16 or BF16, to nearest even
void convert(StreamHandle, const void* x, int32_t x_dtype, int64_t n, void* y, int32_t y_dtype);
// y [m][w.rows] = x [m][w.width] w^T + bias; bias may be nullptr
void linear(StreamHandle, const float* x, int64_t m, const Matrix& w, const float* bias, float* y, Products products);
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

// Element-wise and on streams.
void squash(StreamHandle, const float* x, int64_t n, float scale, float gain, float* y);
void silu(StreamHandle, const float* x, int64_t n, float scale, float* y);
// a, y [rows][heads]
void decay(StreamHandle, const float* a, int64_t rows, int64_t heads, const float* a_log, const float* dt_bias, float* y);
void l2_norm(StreamHandle, const float* x, int64_t vectors, int64_t n, double eps, float scale, float* y);
// x, g [rows][streams][n], y [rows][n]
void hc_read(StreamHandle, const float* x, const float* g, int64_t rows, int64_t streams, int64_t n, float* y);
// x, y [rows][streams][n], v [rows][n], inject [rows][streams]
void hc_write(StreamHandle, const float* x, const float* v, const float* inject, int64_t rows, int64_t streams, int64_t n, float* y);
// key, query [vectors][n], y [vectors]
void ple_gate(StreamHandle, const float* key, const float* query, int64_t vectors, int64_t n, float* y);
// x [rows][n], g [rows][streams], y [rows][streams][n]
void stream_gate(StreamHandle, const float* x, const float* g, int64_t rows, int64_t streams, int64_t n, float* y);
// state, y [rows][n], joint [rows][3][n]
void markov_state(StreamHandle, const float* state, const float* joint, int64_t rows, int64_t n, float* y);
void markov_output(StreamHandle, const float* joint, int64_t rows, int64_t n, float* y);

// Sequences.
// x, y [rows][channels], history [(taps-1) * dilation][channels], w [channels][taps]
void short_conv(StreamHandle, const float* x, const float* history, const float* w, int64_t rows, int64_t channels, int64_t taps,
                int64_t dilation, float* y);
// x, y [rows][n], kernel [rows][2][taps][groups], base [2][taps][n]
void dynamic_conv(StreamHandle, const float* x, const float* kernel, const float* base, int64_t rows, int64_t n, int64_t taps,
                  int64_t groups, int64_t side, float* y);
void delta_state(StreamHandle, const ops::DeltaSizes&, const float* start, const float* k, const float* v, const float* decay,
                 const float* beta, float* y);
void delta_read(StreamHandle, const ops::DeltaSizes&, const float* state, const float* q, float* y);
// x [blocks * ratio][width], y [blocks][width]
void block_mean(StreamHandle, const float* x, int64_t blocks, int64_t ratio, int64_t width, float* y);

// Choices and experts; ids that were chosen are int32.
// q [rows][heads][dim], k [blocks][dim], y [rows][blocks]
void index_scores(StreamHandle, const float* q, int64_t rows, int64_t heads, int64_t dim, const float* k, int64_t blocks, const int64_t* pos,
                  int64_t ratio, float scale, float* y);
// scores [rows][blocks], y [rows][cells]
void select_cells(StreamHandle, const float* scores, int64_t rows, int64_t blocks, const int64_t* pos, int64_t cells, int64_t ratio,
                  int64_t budget, int32_t* y);
// scores [rows][width], bias [width] or nullptr, y [rows][k]
void select(StreamHandle, const float* scores, const float* bias, int64_t rows, int64_t width, int64_t k, int32_t* y);
// scores, candidates [rows][count], y [rows]
void choose(StreamHandle, const float* scores, const int32_t* candidates, int64_t rows, int64_t count, int32_t* y);
// logits [rows][vocab], candidates [rows][count], hidden [rows][n], before [rows][n] and after [rows][count][n]: the codes of the
// previous ids and of the candidates; y [rows][count]
void selector_scores(StreamHandle, const float* logits, int64_t rows, int64_t vocab, const int32_t* candidates, int64_t count,
                     const float* hidden, const float* before, const float* after, int64_t n, float* y);
// target_ids [count]
void to_target(StreamHandle, const int32_t* ids, int64_t n, const int64_t* target_ids, int64_t count, int32_t* y);
// scores [rows][experts], selected, y [rows][ranks]
void expert_weights(StreamHandle, const float* scores, int64_t rows, int64_t experts, const int32_t* selected, int64_t ranks, bool normalise,
                    float scale, float* y);
// x [rows][ranks][n], weights [rows][ranks], y [rows][n]
void expert_sum(StreamHandle, const float* x, const float* weights, int64_t rows, int64_t ranks, int64_t n, float* y);

}  // namespace dlab::gpu
