// The fused drafter: one DFlash forward over cached context cells, built from the same `ops` as the single operations.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config.hpp"
#include "context.hpp"

namespace dlab {

struct LayerWeights {
  std::vector<float> input_norm, post_norm, q_norm, k_norm, q_bias, k_bias, v_bias, o_bias;  // biases: empty for none
  Weight q, k, v, o, gate, up, down;
  Weight attn_gate;  // one row per head or per channel; no rows for none
  Weight attn_conv_kernel, mlp_conv_kernel;           // [2 * taps * groups, hidden]; no rows for none
  std::vector<float> attn_conv_base, mlp_conv_base;  // [2][taps][hidden]
};

struct DrafterWeights {
  Weight fc, embedding, head;
  std::vector<float> hidden_norm, norm;
  std::vector<float> tap_norm;  // one norm per tap, side by side; empty for none
  std::vector<LayerWeights> layers;
  Weight predecessor, successor, selector_hidden;                     // of a selector
  Weight w1, w2, markov_gate, markov_joint, confidence;               // of DSpark
  std::vector<float> markov_gate_bias, markov_joint_bias, confidence_bias;  // empty for none
  std::vector<int64_t> target_ids;                                    // of a draft vocabulary
  std::vector<std::unique_ptr<uint8_t[]>> owned;  // copies of matrices that are not borrowed

  // Every tensor that the configuration needs and no other; throws Error naming the tensor.
  static DrafterWeights take(dlab_ctx& ctx, const Config& config, const dlab_named_tensor* weights, int32_t n, bool borrow);
};

// A dense block of rows, and its view.
inline std::vector<float> values(int64_t rows, int64_t width) { return std::vector<float>(static_cast<size_t>(rows * width)); }

inline Rows rows_of(const std::vector<float>& v, int64_t rows) {
  const int64_t width = rows ? static_cast<int64_t>(v.size()) / rows : 0;
  return {const_cast<float*>(v.data()), rows, width, width};
}

// Keys and values of the context rows of one layer, [rows][kv_heads * head_dim].
struct Cache {
  std::vector<float> k, v;
};

}  // namespace dlab

struct dlab_drafter {
  struct Outcome {
    std::vector<int32_t> ids;          // [rows]
    std::vector<float> top2, logits;   // [rows][2], [rows][vocab]
  };

  dlab_drafter(dlab_ctx& context, dlab::Config configuration, dlab::DrafterWeights parameters);

  // Both change the context as a whole or, when they throw, not at all.
  void append(dlab::Rows taps, int64_t pos0);
  void truncate(int64_t kept);
  Outcome propose(const int32_t* block_ids, int64_t rows, int64_t pos);

  dlab_ctx& ctx;
  const dlab::Config config;
  std::vector<int64_t> positions;  // of the rows held, ascending
  std::vector<dlab::Cache> caches;
  // Of the last block: whether there was one, what it drafts, and how sure a confidence head is of each draft.
  bool proposed = false;
  std::vector<int32_t> drafts;
  std::vector<float> confidence;

 private:
  using Values = std::vector<float>;
  struct Block;

  void require_held(int64_t kept) const;
  std::vector<int64_t> rotated(int64_t pos0, int64_t rows) const;
  void layer(int64_t index, Block& block);
  Values attend(int64_t index, const Block& block, const Values& q, const Values& k, const Values& v);
  void evict();

  // Drafts of the drafted rows, from the block's hidden rows [rows][hidden] and logits.
  struct Drafts {
    std::vector<int32_t> ids;
    std::vector<float> confidence;
  };
  Drafts draft(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome);
  Drafts selector_walk(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome);
  Drafts markov_walk(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome);
  Values markov_code(const std::string& path, const Values& embedded, const Values& hidden, Values& state);

  // One operation each, recorded under its stage path; heads = 0: the stage has no head axis.
  Values project(const std::string& stage, dlab::Rows x, const dlab::Weight& w, const Values& bias, int64_t heads, int64_t row0);
  Values normalise(const std::string& stage, const Values& x, int64_t rows, const Values& w, int64_t heads, int64_t row0);
  Values normalise_taps(dlab::Rows taps, int64_t row0);
  Values gated(const std::string& path, const Values& xn, Values attended, int64_t rows, const dlab::Weight& w);
  Values convolution_kernel(const std::string& stage, const Values& xn, int64_t rows, const dlab::Weight& w);
  Values convolved(const std::string& stage, const Values& x, const Values& kernel, const Values& base, int64_t rows, int64_t side);
  Values join(const std::string& stage, std::initializer_list<const Values*> parts);
  Values rotate(const std::string& stage, const Values& x, int64_t rows, const Values& table, int64_t heads, int64_t row0);
  Values residual(const std::string& stage, const Values& x, const Values& y, int64_t rows);
  Values rope_table(const std::vector<int64_t>& pos) const;
  void emit(const std::string& stage, const void* data, int64_t row0, std::vector<int64_t> shape, int32_t dtype = DLAB_F32,
            int64_t row_stride = 0) const;

  const dlab::DrafterWeights weights;
  std::vector<double> inv_freq;
  int64_t length = 0;   // rows committed
  int64_t dropped = 0;  // rows sink .. dropped-1 were evicted
  std::vector<int64_t> exposed;  // positions that a rotating cache still holds, ascending
};
