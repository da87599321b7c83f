#include <cstring>
#include <map>

#include "checks.hpp"
#include "drafter_weights.hpp"
#include "formats.hpp"

namespace dlab {

namespace {

// The named tensors of a call; each may be taken once.
class Bag {
 public:
  Bag(dlab_ctx& ctx, const dlab_named_tensor* weights, int32_t n) : ctx_(ctx) {
    if (n < 0) fail(DLAB_E_ARG, "n is %d", n);
    if (n) require_pointer(weights, "weights");
    for (int32_t i = 0; i < n; ++i) {
      if (!weights[i].name) fail(DLAB_E_ARG, "weights[%d] has no name", i);
      if (!tensors_.emplace(weights[i].name, &weights[i].tensor).second) fail(DLAB_E_ARG, "weight '%s' is given twice", weights[i].name);
    }
  }

  bool has(const std::string& name) const { return tensors_.count(name) > 0; }

  std::vector<float> vector(const std::string& name, int64_t length) { return weight_vector(ctx_, take(name), name.c_str(), length); }

  std::vector<float> optional(const std::string& name, int64_t length) {
    return has(name) ? vector(name, length) : std::vector<float>{};
  }

  Weight matrix(const std::string& name, int64_t rows, int64_t width) {
    const dlab_tensor* tensor = take(name);
    const Weight weight = stored_weight(tensor, name.c_str(), 2);
    require_shape(tensor, name.c_str(), {rows, width});
    return weight;
  }

  // A matrix with one of two numbers of rows.
  Weight rows(const std::string& name, std::pair<int64_t, int64_t> rows, int64_t width) {
    const dlab_tensor* tensor = peek(name);
    return matrix(name, tensor && tensor->shape[0] == rows.second ? rows.second : rows.first, width);
  }

  std::vector<int64_t> ids(const std::string& name, int64_t length, int64_t limit) {
    const dlab_tensor* tensor = take(name);
    require_tensor(tensor, name.c_str(), 1, {DLAB_I64});
    require_shape(tensor, name.c_str(), {length});
    std::vector<int64_t> list(static_cast<size_t>(length));
    if (length) memcpy(list.data(), tensor->data, list.size() * sizeof(int64_t));
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i] < 0 || list[i] >= limit)
        fail(DLAB_E_ARG, "%s[%zu] is %lld, expected 0..%lld", name.c_str(), i, ll(list[i]), ll(limit - 1));
    return list;
  }

  // A matrix, decoded.
  std::vector<float> values(const std::string& name, int64_t rows, int64_t width) {
    const Weight weight = matrix(name, rows, width);
    std::vector<float> decoded(static_cast<size_t>(rows * width));
    for (int64_t r = 0; r < rows; ++r) ctx_.kernels.decode(weight.dtype, weight.row(r), decoded.data() + r * width, width);
    return decoded;
  }

  void finish() const {
    if (!tensors_.empty()) fail(DLAB_E_ARG, "weight '%s' has no place in this configuration", tensors_.begin()->first.c_str());
  }

 private:
  const dlab_tensor* peek(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : found->second;
  }

  const dlab_tensor* take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) fail(DLAB_E_ARG, "weight '%s' is missing", name.c_str());
    const dlab_tensor* tensor = found->second;
    tensors_.erase(found);
    return tensor;
  }

  dlab_ctx& ctx_;
  std::map<std::string, const dlab_tensor*> tensors_;
};

// Makes the weight a dense copy of itself.
void own(Weight& weight, std::vector<std::unique_ptr<uint8_t[]>>& owned) {
  const Format& format = *weight_format(weight.dtype);
  const int64_t dense = weight.width / format.block * format.bytes;
  std::unique_ptr<uint8_t[]> copy(new uint8_t[static_cast<size_t>(weight.rows * dense)]);
  for (int64_t r = 0; r < weight.rows; ++r) memcpy(copy.get() + r * dense, weight.row(r), static_cast<size_t>(dense));
  weight.data = copy.get();
  weight.row_bytes = dense;
  owned.push_back(std::move(copy));
}

void take_convolutions(Bag& bag, const Config& c, const std::string& p, LayerWeights& layer) {
  const int64_t taps = 2 * c.conv_taps, kernels = taps * c.conv_groups;
  layer.attn_conv_base = bag.values(p + "attn_conv_base", taps, c.hidden);
  layer.attn_conv_kernel = bag.matrix(p + "attn_conv_kernel", kernels, c.hidden);
  layer.mlp_conv_base = bag.values(p + "mlp_conv_base", taps, c.hidden);
  layer.mlp_conv_kernel = bag.matrix(p + "mlp_conv_kernel", kernels, c.hidden);
}

void take_heads(Bag& bag, const Config& c, DrafterWeights& w) {
  const int64_t rank = c.markov_rank;
  if (c.selector_rank) {
    w.predecessor = bag.matrix("selector.predecessor", c.vocab, c.selector_rank);
    w.successor = bag.matrix("selector.successor", c.vocab, c.selector_rank);
    w.selector_hidden = bag.matrix("selector.hidden", c.selector_rank, c.hidden);
  }
  if (c.markov != Markov::None) {
    w.w1 = bag.matrix("markov.w1", c.vocab, rank);
    w.w2 = bag.matrix("markov.w2", c.draft_vocab, rank);
  }
  if (c.markov == Markov::Gated) {
    w.markov_gate = bag.matrix("markov.gate", rank, c.hidden + rank);
    w.markov_gate_bias = bag.optional("markov.gate_bias", rank);
  }
  if (c.markov == Markov::Rnn) {
    w.markov_joint = bag.matrix("markov.joint", 3 * rank, 2 * rank + c.hidden);
    w.markov_joint_bias = bag.optional("markov.joint_bias", 3 * rank);
  }
  if (c.confidence != Confidence::None) {
    w.confidence = bag.matrix("confidence", 1, c.hidden + (c.confidence == Confidence::Markov ? rank : 0));
    w.confidence_bias = bag.optional("confidence_bias", 1);
  }
  if (bag.has("target_ids")) w.target_ids = bag.ids("target_ids", c.draft_vocab, c.vocab);
  else if (c.draft_vocab != c.vocab) fail(DLAB_E_ARG, "weight 'target_ids' is missing: draft_vocab=%lld is not the vocabulary", ll(c.draft_vocab));
}

}  // namespace

DrafterWeights DrafterWeights::take(dlab_ctx& ctx, const Config& c, const dlab_named_tensor* weights, int32_t n, bool borrow) {
  Bag bag(ctx, weights, n);
  DrafterWeights w;
  w.fc = bag.matrix("fc", c.hidden, c.feature_width());
  w.embedding = bag.matrix("embedding", c.vocab, c.hidden);
  w.head = bag.matrix("head", c.draft_vocab, c.hidden);
  w.hidden_norm = bag.vector("hidden_norm", c.hidden);
  w.norm = bag.vector("norm", c.hidden);
  if (c.tap_norm) w.tap_norm = bag.vector("tap_norm", c.feature_width());
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    LayerWeights layer;
    layer.input_norm = bag.vector(p + "input_norm", c.hidden);
    layer.post_norm = bag.vector(p + "post_norm", c.hidden);
    layer.q_norm = bag.vector(p + "q_norm", c.head_dim);
    layer.k_norm = bag.vector(p + "k_norm", c.head_dim);
    layer.q = bag.matrix(p + "q", c.query_width(), c.hidden);
    layer.k = bag.matrix(p + "k", c.cell_width(), c.hidden);
    layer.v = bag.matrix(p + "v", c.cell_width(), c.hidden);
    layer.o = bag.matrix(p + "o", c.hidden, c.query_width());
    layer.gate = bag.matrix(p + "gate", c.intermediate, c.hidden);
    layer.up = bag.matrix(p + "up", c.intermediate, c.hidden);
    layer.down = bag.matrix(p + "down", c.hidden, c.intermediate);
    if (c.attn_gate != Gate::None) layer.attn_gate = bag.rows(p + "attn_gate", {c.heads, c.query_width()}, c.hidden);
    layer.q_bias = bag.optional(p + "q_bias", c.query_width());
    layer.k_bias = bag.optional(p + "k_bias", c.cell_width());
    layer.v_bias = bag.optional(p + "v_bias", c.cell_width());
    layer.o_bias = bag.optional(p + "o_bias", c.hidden);
    if (c.conv_taps) take_convolutions(bag, c, p, layer);
    w.layers.push_back(std::move(layer));
  }
  take_heads(bag, c, w);
  bag.finish();
  if (borrow) return w;
  std::vector<Weight*> all = {&w.fc, &w.embedding, &w.head, &w.predecessor, &w.successor, &w.selector_hidden,
                              &w.w1, &w.w2,        &w.markov_gate, &w.markov_joint, &w.confidence};
  for (LayerWeights& layer : w.layers)
    for (Weight* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down, &layer.attn_gate,
                           &layer.attn_conv_kernel, &layer.mlp_conv_kernel})
      all.push_back(matrix);
  for (Weight* matrix : all)
    if (matrix->rows) own(*matrix, w.owned);
  return w;
}

}  // namespace dlab
