// The arithmetic of the CPU backend, as a table of functions compiled once per instruction set.
//
// Everything in the table works on data that has been validated, in memory that the caller owns; it neither allocates nor throws.
#pragma once

#include <cstdint>

namespace dlab {

constexpr int64_t kChunk = 256;     // products summed in sequence before their sum joins the running total
constexpr int64_t kGroup = 16;      // activation rows that share one decoded weight in registers
constexpr int64_t kPassGroups = 4;  // groups that share one decoded weight in the cache

// A matrix of stored weights; rows = output features.
struct Weight {
  const uint8_t* data = nullptr;
  int32_t dtype = 0;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t row_bytes = 0;

  const uint8_t* row(int64_t r) const { return data + r * row_bytes; }
};

// Rows of f32 values; stride in values.
struct Rows {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;

  float* row(int64_t r) const { return data + r * stride; }
};

// One tile of a product: weight rows first .. first+count-1 against up to kPassGroups groups of packed activation rows.
struct ProductTile {
  const Weight* weight;
  int64_t first, count;
  const float* packed;  // [group][k][lanes]
  int64_t lanes;        // 8 or 16
  const float* bias;    // [weight rows] or nullptr
  Rows out;             // the activation rows of this pass
};

// Attention of up to kGroup query vectors that read the same key/value head.
struct AttentionItem {
  const Weight* keys;             // the cells of this head: rows = cells, width = head_dim
  const Weight* values;
  int64_t count;                  // query vectors
  const float* queries[kGroup];   // each [head_dim]
  float* outputs[kGroup];
  const uint8_t* visible[kGroup]; // each [cells], or nullptr for all
  const float* sinks[kGroup];     // each one logit, or nullptr
  float scale;
  float* scratch;                 // attention_scratch(cells, head_dim) values
};

// Two recordings [rows, width]; kinds as reduce.cpp numbers them. least: 2^emin and scale: 2^(p-2) of the coarser format.
struct DifferenceItem {
  int32_t kind_a, kind_b;
  const void *a, *b;
  int64_t rows, width;
  double least, scale;
  uint8_t* differs;  // [rows]
};

struct Difference {
  int64_t elements;
  double max_abs, ulps;
};

struct Kernels {
  const char* isa;
  bool fused_multiply_add;
  // n values of a row from its start; n is a multiple of the format's block.
  void (*decode)(int32_t dtype, const uint8_t* src, float* dst, int64_t n);
  int64_t (*tile_rows)(int64_t lanes);
  void (*product)(const ProductTile& tile);
  void (*attention)(const AttentionItem& item);
  // w [width] or nullptr.
  void (*rms_norm)(const float* x, const float* w, float offset, double eps, int64_t width, float* y);
  // table: cos, sin per pair.
  void (*rope)(const float* x, const float* table, int64_t rot, int64_t width, bool interleaved, float* y);
  void (*gate)(const float* x, const float* g, bool one_logit, bool softplus, int64_t n, float* y);
  void (*swiglu)(const float* gate, const float* up, bool gelu, int64_t n, float* y);
  void (*add)(const float* a, const float* b, int64_t n, float* y);
  void (*multiply)(const float* x, float factor, int64_t n, float* y);
  void (*softmax)(const float* x, float scale, int64_t n, float* y);
  void (*softcap)(const float* x, float scale, float cap, int64_t n, float* y);
  float (*dot)(const float* a, const float* b, int64_t n);
  // state [depth][n]; sum: n values of scratch.
  void (*delta_read)(const float* state, const float* q, int64_t depth, int64_t n, float* sum, float* out);
  // before, after [depth][n], which may not overlap; scratch: 2n values.
  void (*delta_step)(const float* before, const float* key, const float* v, float decay, float beta, int64_t depth, int64_t n,
                     float* scratch, float* after);
  // rows: one per tap; w [n][taps].
  void (*short_conv)(const float* const* rows, const float* w, int64_t taps, int64_t n, float* y);
  // rows: one per tap, nullptr from the first that lies before the block; base [taps][n], made [taps][groups].
  void (*dynamic_conv)(const float* const* rows, const float* base, const float* made, int64_t taps, int64_t groups, int64_t n, float* y);
  void (*mean)(const float* x, int64_t stride, int64_t count, int64_t n, float* y);
  void (*weighted_sum)(const float* x, const float* weights, int64_t count, int64_t n, float* y);
  void (*silu)(const float* x, float scale, int64_t n, float* y);
  void (*squash)(const float* x, float scale, float gain, int64_t n, float* y);
  void (*decay)(const float* a, const float* a_log, const float* dt_bias, int64_t n, float* y);
  void (*l2_norm)(const float* x, double eps, float scale, int64_t n, float* y);
  void (*hc_read)(const float* x, const float* g, int64_t streams, int64_t n, float* y);
  void (*hc_write)(const float* x, const float* v, const float* inject, int64_t streams, int64_t n, float* y);
  float (*ple_gate)(const float* key, const float* query, int64_t n);
  void (*product_of)(const float* a, const float* b, int64_t n, float* y);
  // joint [3][n]
  void (*markov_state)(const float* state, const float* joint, int64_t n, float* y);
  void (*hyperbolic)(const float* x, int64_t n, float* y);
  void (*differences)(const DifferenceItem& item, Difference& out);
  uint64_t (*read_words)(const uint64_t* words, int64_t n);
};

// Packed queries, the scores of kGroup query vectors, and one decoded chunk of values.
constexpr int64_t attention_scratch(int64_t cells, int64_t head_dim) { return (cells + head_dim) * kGroup + kChunk * head_dim; }

extern const Kernels kBaselineKernels;
#ifdef DLAB_HAVE_V3
extern const Kernels kV3Kernels;
#endif

// The best table for this processor, or the one of this name: nullptr when it is unknown or the processor cannot run it.
const Kernels& choose_kernels();
const Kernels* find_kernels(const char* isa);

}  // namespace dlab
