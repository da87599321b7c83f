#include "config.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "context.hpp"

namespace dlab {

namespace {

struct NamedRule {
  const char* name;
  WindowRule rule;
};
constexpr NamedRule kRules[] = {
    {"none", WindowRule::None},          {"W_LT", WindowRule::Lt},         {"W_LT_left", WindowRule::LtLeft}, {"W_LE", WindowRule::Le},
    {"W_LT_ctx", WindowRule::LtContext}, {"W_ANCHOR", WindowRule::Anchor}, {"W_RING", WindowRule::Ring},
    {"SINK_RING", WindowRule::SinkRing}, {"W_CACHE", WindowRule::Cache},
};

// In the order of their enumerations.
const std::vector<const char*> kGates = {"none", "sigmoid", "softplus"};
const std::vector<const char*> kMarkovs = {"none", "vanilla", "gated", "rnn"};
const std::vector<const char*> kConfidences = {"none", "hidden", "markov"};
const std::vector<const char*> kLayouts = {"fill_in", "predict_next"};

// Hands out each key once, so that what is left over is unknown.
class Keys {
 public:
  explicit Keys(const char* text) {
    for (auto& [key, value] : parse_lines(text, "config")) values_[key] = value;
  }

  bool has(const char* key) const { return values_.count(key) > 0; }

  std::string take(const char* key) {
    const auto found = values_.find(key);
    if (found == values_.end()) fail(DLAB_E_ARG, "config key '%s' is missing", key);
    std::string value = found->second;
    values_.erase(found);
    return value;
  }

  int64_t integer(const char* key, int64_t low, int64_t high) { return parse_integer(key, take(key), low, high); }

  double number(const char* key, bool positive) {
    const std::string text = take(key);
    char* end = nullptr;
    const double value = strtod(text.c_str(), &end);
    if (text.empty() || *end || !std::isfinite(value) || value < 0 || (positive && value == 0))
      fail(DLAB_E_ARG, "%s=%s: expected a finite number %s 0", key, text.c_str(), positive ? "above" : "of at least");
    return value;
  }

  // The index of the value among the known ones; 0 where the key is absent.
  int choice(const char* key, const std::vector<const char*>& known) {
    if (!has(key)) return 0;
    const std::string text = take(key);
    std::string names;
    for (size_t i = 0; i < known.size(); ++i) {
      if (text == known[i]) return static_cast<int>(i);
      names += std::string(i ? ", " : "") + known[i];
    }
    fail(DLAB_E_ARG, "%s=%s: expected %s", key, text.c_str(), names.c_str());
  }

  std::vector<char> flags(const char* key, int64_t count) {
    const std::string text = take(key);
    std::vector<char> flags;
    for (size_t i = 0; i < text.size(); i += 2) {
      if ((text[i] != '0' && text[i] != '1') || (i + 1 < text.size() && text[i + 1] != ',') || i + 2 == text.size())
        fail(DLAB_E_ARG, "%s=%s: expected 0 or 1 per layer, comma separated", key, text.c_str());
      flags.push_back(text[i] == '1');
    }
    if (static_cast<int64_t>(flags.size()) != count)
      fail(DLAB_E_ARG, "%s=%s: expected %lld values, one per layer", key, text.c_str(), ll(count));
    return flags;
  }

  void finish() const {
    if (!values_.empty())
      fail(DLAB_E_ARG, "config key '%s' is unknown, or has no place in this configuration", values_.begin()->first.c_str());
  }

 private:
  std::map<std::string, std::string> values_;
};

constexpr int64_t kMaxWidth = int64_t{1} << 24;

void read_rules(Keys& keys, Config& c) {
  c.causal = keys.flags("causal", c.layers);
  c.sliding = keys.flags("sliding", c.layers);
  c.window_rule_name = keys.take("window_rule");
  bool known = false;
  for (const NamedRule& rule : kRules)
    if (c.window_rule_name == rule.name) {
      c.window_rule = rule.rule;
      known = true;
    }
  if (!known) fail(DLAB_E_ARG, "window_rule=%s is unknown", c.window_rule_name.c_str());
  if (c.window_rule != WindowRule::None) c.window = keys.integer("window", 1, int64_t{1} << 20);
  if (!c.evicts()) return;
  c.sink = keys.integer("sink", 0, int64_t{1} << 20);
  for (int64_t l = 0; l < c.layers; ++l)
    if (!c.sliding[static_cast<size_t>(l)])
      fail(DLAB_E_ARG, "sliding: layer %lld does not slide, but SINK_RING evicts the rows it needs", ll(l));
}

// Switches of some dialects; a configuration may leave them out.
void read_switches(Keys& keys, Config& c) {
  if (keys.has("tap_norm")) c.tap_norm = keys.integer("tap_norm", 0, 1) != 0;
  if (keys.has("ctx_layernorm")) c.ctx_layernorm = keys.integer("ctx_layernorm", 0, 1) != 0;
  c.attn_gate = static_cast<Gate>(keys.choice("attn_gate", kGates));
}

// The parts of DFlash 2 and DSpark.
void read_heads(Keys& keys, Config& c) {
  c.predict_next = keys.choice("anchor_layout", kLayouts) == 1;
  c.draft_vocab = keys.has("draft_vocab") ? keys.integer("draft_vocab", 1, c.vocab) : c.vocab;
  if (keys.has("conv_taps")) {
    c.conv_taps = keys.integer("conv_taps", 1, 4096);
    c.conv_groups = keys.integer("conv_groups", 1, c.hidden);
    if (c.hidden % c.conv_groups) fail(DLAB_E_ARG, "conv_groups=%lld: expected a divisor of hidden=%lld", ll(c.conv_groups), ll(c.hidden));
  }
  if (keys.has("selector_rank")) {
    c.selector_rank = keys.integer("selector_rank", 1, kMaxWidth);
    c.selector_top_k = keys.integer("selector_top_k", 1, c.draft_vocab);
  }
  c.markov = static_cast<Markov>(keys.choice("markov", kMarkovs));
  if (c.markov != Markov::None) c.markov_rank = keys.integer("markov_rank", 1, kMaxWidth);
  c.confidence = static_cast<Confidence>(keys.choice("confidence", kConfidences));
  if (c.confidence == Confidence::Markov && c.markov == Markov::None) fail(DLAB_E_ARG, "confidence=markov: there is no Markov head");
  if (c.selector_rank && (c.markov != Markov::None || c.confidence != Confidence::None))
    fail(DLAB_E_ARG, "selector_rank=%lld: a selector has no Markov or confidence head beside it", ll(c.selector_rank));
}

std::string list(const std::vector<char>& flags) {
  std::string text;
  for (char flag : flags) text += std::string(text.empty() ? "" : ",") + (flag ? "1" : "0");
  return text;
}

}  // namespace

Config Config::parse(const char* text) {
  if (!text) fail(DLAB_E_ARG, "config is NULL");
  Keys keys(text);
  Config c;
  c.family = keys.take("family");
  c.hidden = keys.integer("hidden", 1, kMaxWidth);
  c.intermediate = keys.integer("intermediate", 1, kMaxWidth);
  c.layers = keys.integer("layers", 1, 1024);
  c.heads = keys.integer("heads", 1, 4096);
  c.kv_heads = keys.integer("kv_heads", 1, 4096);
  if (c.heads % c.kv_heads) fail(DLAB_E_ARG, "heads=%lld is not a multiple of kv_heads=%lld", ll(c.heads), ll(c.kv_heads));
  c.head_dim = keys.integer("head_dim", 2, 4096);
  c.vocab = keys.integer("vocab", 1, kMaxWidth);
  c.block_size = keys.integer("block_size", 1, 512);
  c.mask_token_id = keys.integer("mask_token_id", 0, c.vocab - 1);
  c.n_taps = keys.integer("n_taps", 1, 1024);
  c.target_hidden = keys.integer("target_hidden", 1, kMaxWidth);
  c.eps = keys.number("eps", false);
  c.rope_theta = keys.number("rope.theta", true);
  c.rope_dim = keys.integer("rope.dim", 2, c.head_dim);
  if (c.rope_dim % 2) fail(DLAB_E_ARG, "rope.dim=%lld: expected an even number", ll(c.rope_dim));
  c.rope_style = keys.take("rope.style");
  if (c.rope_style != "neox" && c.rope_style != "interleaved")
    fail(DLAB_E_ARG, "rope.style=%s: expected neox or interleaved", c.rope_style.c_str());
  c.attn_scale = keys.number("attn_scale", true);
  c.embed_scale = keys.number("embed_scale", true);
  c.output_multiplier = keys.number("output_multiplier", true);
  c.softcap = keys.number("softcap", false);
  read_rules(keys, c);
  read_switches(keys, c);
  read_heads(keys, c);
  keys.finish();
  return c;
}

std::string Config::text() const {
  std::string text;
  const auto line = [&](const char* key, const std::string& value) { text += std::string(key) + "=" + value + "\n"; };
  const auto integer = [&](const char* key, int64_t value) { line(key, std::to_string(value)); };
  const auto number = [&](const char* key, double value) {
    char digits[40];
    snprintf(digits, sizeof digits, "%.17g", value);
    line(key, digits);
  };
  line("family", family);
  integer("hidden", hidden);
  integer("intermediate", intermediate);
  integer("layers", layers);
  integer("heads", heads);
  integer("kv_heads", kv_heads);
  integer("head_dim", head_dim);
  integer("vocab", vocab);
  integer("block_size", block_size);
  integer("mask_token_id", mask_token_id);
  integer("n_taps", n_taps);
  integer("target_hidden", target_hidden);
  number("eps", eps);
  number("rope.theta", rope_theta);
  integer("rope.dim", rope_dim);
  line("rope.style", rope_style);
  number("attn_scale", attn_scale);
  number("embed_scale", embed_scale);
  number("output_multiplier", output_multiplier);
  number("softcap", softcap);
  line("causal", list(causal));
  line("sliding", list(sliding));
  line("window_rule", window_rule_name);
  if (window_rule != WindowRule::None) integer("window", window);
  if (evicts()) integer("sink", sink);
  integer("tap_norm", tap_norm);
  integer("ctx_layernorm", ctx_layernorm);
  line("attn_gate", kGates[static_cast<size_t>(attn_gate)]);
  line("anchor_layout", kLayouts[predict_next]);
  integer("draft_vocab", draft_vocab);
  if (conv_taps) integer("conv_taps", conv_taps), integer("conv_groups", conv_groups);
  if (selector_rank) integer("selector_rank", selector_rank), integer("selector_top_k", selector_top_k);
  line("markov", kMarkovs[static_cast<size_t>(markov)]);
  if (markov != Markov::None) integer("markov_rank", markov_rank);
  line("confidence", kConfidences[static_cast<size_t>(confidence)]);
  return text;
}

std::vector<double> Config::frequencies() const {
  std::vector<double> list;
  for (int64_t i = 0; i < rope_dim; i += 2) list.push_back(std::pow(rope_theta, -static_cast<double>(i) / static_cast<double>(rope_dim)));
  return list;
}

bool Config::sees(int64_t layer, int64_t q, int64_t k, int64_t anchor, bool in_context, bool held) const {
  const int64_t delta = q - k;
  if (causal[static_cast<size_t>(layer)] && delta < 0) return false;
  if (!sliding[static_cast<size_t>(layer)]) return true;
  switch (window_rule) {
    case WindowRule::None:
    case WindowRule::SinkRing: return true;
    case WindowRule::Lt: return std::abs(delta) < window;
    case WindowRule::LtLeft: return delta < window;
    case WindowRule::Le: return std::abs(delta) <= window;
    case WindowRule::LtContext: return !in_context || delta < window;
    case WindowRule::Anchor: return !in_context || k >= anchor - window;
    case WindowRule::Cache: return !in_context || held;
    case WindowRule::Ring: return !in_context || k >= anchor - (window - 1);
  }
  return false;
}

}  // namespace dlab
