// The fused drafter's configuration: parsed from key=value lines, complete or refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dlab {

enum class Gate { None, Sigmoid, Softplus };
enum class WindowRule { None, Lt, LtLeft, Le, LtContext, Anchor, Ring, SinkRing, Cache };
enum class Markov { None, Vanilla, Gated, Rnn };
enum class Confidence { None, Hidden, Markov };

struct Config {
  std::string family, rope_style, window_rule_name;
  int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  int64_t block_size = 0, mask_token_id = 0, n_taps = 0, target_hidden = 0, rope_dim = 0, window = 0, sink = 0;
  double eps = 0, rope_theta = 0, attn_scale = 0, embed_scale = 0, output_multiplier = 0, softcap = 0;
  std::vector<char> causal, sliding;
  bool tap_norm = false, ctx_layernorm = false;  // a norm per tap; each layer's input norm on the context
  Gate attn_gate = Gate::None;
  WindowRule window_rule = WindowRule::None;
  bool predict_next = false;    // the block's first row drafts too
  int64_t draft_vocab = 0;      // rows of the head
  int64_t conv_taps = 0, conv_groups = 0, selector_rank = 0, selector_top_k = 0, markov_rank = 0;  // 0: no such part
  Markov markov = Markov::None;
  Confidence confidence = Confidence::None;

  // Throws Error (DLAB_E_ARG) naming the key.
  static Config parse(const char* text);
  std::string text() const;

  int64_t query_width() const { return heads * head_dim; }
  int64_t cell_width() const { return kv_heads * head_dim; }
  int64_t feature_width() const { return n_taps * target_hidden; }
  bool evicts() const { return window_rule == WindowRule::SinkRing; }
  bool rotates() const { return window_rule == WindowRule::Cache; }

  // theta^(-2i/dim) for every pair i that is rotated
  std::vector<double> frequencies() const;

  // May the query row at position q see the cell at position k? anchor: position of the block's first row; in_context: the cell is a
  // context cell; held: a rotating cache holds it.
  bool sees(int64_t layer, int64_t q, int64_t k, int64_t anchor, bool in_context, bool held) const;
};

}  // namespace dlab
