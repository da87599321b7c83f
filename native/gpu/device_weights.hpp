// A drafter's parameters in device memory.
#pragma once

#include "cpu/drafter_weights.hpp"
#include "gpu/gpu.hpp"

namespace dlab::gpu {

struct DeviceMatrix {
  Buffer<uint8_t> bytes;
  Matrix view;  // no rows: not there
};

// Norms and biases: empty for none.
using DeviceVector = Buffer<float>;

struct DeviceLayer {
  DeviceMatrix q, k, v, o, gate, up, down, attn_gate, attn_conv_kernel, mlp_conv_kernel;
  DeviceVector input_norm, post_norm, q_norm, k_norm, q_bias, k_bias, v_bias, o_bias, attn_conv_base, mlp_conv_base;
};

struct DeviceWeights {
  // Copies all of them in the order of the stream, and waits.
  DeviceWeights(StreamHandle stream, const DrafterWeights& weights);

  DeviceMatrix fc, embedding, head, predecessor, successor, selector_hidden, w1, w2, markov_gate, markov_joint, confidence;
  DeviceVector hidden_norm, norm, tap_norm, markov_gate_bias, markov_joint_bias, confidence_bias;
  Buffer<int64_t> target_ids;
  std::vector<DeviceLayer> layers;
};

}  // namespace dlab::gpu
