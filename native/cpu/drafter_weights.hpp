// The parameters of a fused drafter, as they are stored.
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

}  // namespace dlab
