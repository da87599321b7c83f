#include "gpu/device_weights.hpp"

#include "formats.hpp"

namespace dlab::gpu {

namespace {

DeviceMatrix to_device(StreamHandle stream, const Weight& w) {
  if (!w.rows) return {};
  const Format& format = *weight_format(w.dtype);
  const int64_t dense = w.width / format.block * format.bytes;
  DeviceMatrix made{Buffer<uint8_t>(w.rows * dense), {}};
  const Direction direction = backend::on_device(w.data) ? Direction::Across : Direction::Up;
  backend::copy(stream, made.bytes.get(), dense, w.data, w.row_bytes, dense, w.rows, direction, Site());
  made.view = {made.bytes.get(), w.dtype, w.rows, w.width, dense};
  return made;
}

template <class T>
Buffer<T> to_device(StreamHandle stream, const std::vector<T>& values) {
  const auto count = static_cast<int64_t>(values.size());
  if (!count) return {};
  Buffer<T> made(count);
  upload(stream, made.get(), values.data(), count * static_cast<int64_t>(sizeof(T)));
  return made;
}

DeviceLayer to_device(StreamHandle s, const LayerWeights& l) {
  DeviceLayer made;
  for (auto [to, from] : {std::pair{&made.q, &l.q}, {&made.k, &l.k}, {&made.v, &l.v}, {&made.o, &l.o}, {&made.gate, &l.gate},
                          {&made.up, &l.up}, {&made.down, &l.down}, {&made.attn_gate, &l.attn_gate},
                          {&made.attn_conv_kernel, &l.attn_conv_kernel}, {&made.mlp_conv_kernel, &l.mlp_conv_kernel}})
    *to = to_device(s, *from);
  for (auto [to, from] : {std::pair{&made.input_norm, &l.input_norm}, {&made.post_norm, &l.post_norm}, {&made.q_norm, &l.q_norm},
                          {&made.k_norm, &l.k_norm}, {&made.q_bias, &l.q_bias}, {&made.k_bias, &l.k_bias}, {&made.v_bias, &l.v_bias},
                          {&made.o_bias, &l.o_bias}, {&made.attn_conv_base, &l.attn_conv_base}, {&made.mlp_conv_base, &l.mlp_conv_base}})
    *to = to_device(s, *from);
  return made;
}

}  // namespace

DeviceWeights::DeviceWeights(StreamHandle s, const DrafterWeights& w) {
  for (auto [to, from] : {std::pair{&fc, &w.fc}, {&embedding, &w.embedding}, {&head, &w.head}, {&predecessor, &w.predecessor},
                          {&successor, &w.successor}, {&selector_hidden, &w.selector_hidden}, {&w1, &w.w1}, {&w2, &w.w2},
                          {&markov_gate, &w.markov_gate}, {&markov_joint, &w.markov_joint}, {&confidence, &w.confidence}})
    *to = to_device(s, *from);
  for (auto [to, from] : {std::pair{&hidden_norm, &w.hidden_norm}, {&norm, &w.norm}, {&tap_norm, &w.tap_norm},
                          {&markov_gate_bias, &w.markov_gate_bias}, {&markov_joint_bias, &w.markov_joint_bias},
                          {&confidence_bias, &w.confidence_bias}})
    *to = to_device(s, *from);
  target_ids = to_device(s, w.target_ids);
  for (const LayerWeights& layer : w.layers) layers.push_back(to_device(s, layer));
  backend::wait(s, Site());
}

}  // namespace dlab::gpu
