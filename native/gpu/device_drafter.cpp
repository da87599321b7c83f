#include "gpu/device_drafter.hpp"

#include <algorithm>

namespace dlab {

std::unique_ptr<dlab_drafter> make_drafter(dlab_ctx& ctx, Config config, const dlab_named_tensor* weights, int32_t n, bool) {
  const char* part = config.conv_taps                        ? "conv_taps"
                     : config.selector_rank                  ? "selector_rank"
                     : config.markov != Markov::None         ? "markov"
                     : config.confidence != Confidence::None ? "confidence"
                     : config.draft_vocab != config.vocab    ? "draft_vocab"
                                                             : nullptr;
  if (part && !gpu::backend::heads) fail(DLAB_E_UNSUPPORTED, "config key '%s': this library has no such part; use the library cpu", part);
  if (config.head_dim > gpu::kMaxHeadDim)
    fail(DLAB_E_UNSUPPORTED, "head_dim=%lld: this library takes up to %lld", ll(config.head_dim), ll(gpu::kMaxHeadDim));
  const DrafterWeights taken = DrafterWeights::take(ctx, config, weights, n, true);  // copied to the device in any case
  return std::make_unique<gpu::DeviceDrafter>(gpu::context(ctx), std::move(config), taken);
}

namespace gpu {

DeviceDrafter::DeviceDrafter(Gpu& context, Config configuration, const DrafterWeights& w)
    : dlab_drafter(context, std::move(configuration)),
      device_(context),
      weights_(blocks_, w),
      inv_freq_(config.frequencies()),
      pools_(w.layers.size()) {}

float* DeviceDrafter::project(Pass& pass, const std::string& stage, const float* x, const DeviceMatrix& w, const DeviceVector* bias,
                              int64_t heads) {
  float* y = pass.space.floats(stage, pass.rows * w.view.rows);
  linear(pass.stream, x, pass.rows, w.view, bias ? bias->get() : nullptr, y, device_.products);
  if (heads) emit(pass, stage, y, {pass.rows, heads, w.view.rows / heads});
  else emit(pass, stage, y, {pass.rows, w.view.rows});
  return y;
}

float* DeviceDrafter::normalise(Pass& pass, const std::string& stage, const float* x, const DeviceVector& w, int64_t heads) {
  const int64_t vectors = pass.rows * std::max<int64_t>(heads, 1), width = heads ? config.head_dim : config.hidden;
  float* y = pass.space.floats(stage, vectors * width);
  rms_norm(pass.stream, x, vectors, width, 1, w.get(), false, config.eps, 0.0, y);
  if (heads) emit(pass, stage, y, {pass.rows, heads, width});
  else emit(pass, stage, y, {pass.rows, width});
  return y;
}

float* DeviceDrafter::rotate(Pass& pass, const std::string& stage, const float* x, int64_t heads) {
  float* y = pass.space.floats(stage, pass.rows * heads * config.head_dim);
  const bool interleaved = config.rope_style == "interleaved";
  rope(pass.stream, x, pass.table, pass.rows, heads, config.head_dim, config.rope_dim, interleaved, y);
  emit(pass, stage, y, {pass.rows, heads, config.head_dim});
  return y;
}

float* DeviceDrafter::residual(Pass& pass, const std::string& stage, const float* x, const float* y) {
  float* sum = pass.space.floats(stage, pass.rows * config.hidden);
  add(pass.stream, x, y, pass.rows * config.hidden, sum);
  emit(pass, stage, sum, {pass.rows, config.hidden});
  return sum;
}

float* DeviceDrafter::convolution_kernel(Pass& pass, const std::string& stage, const float* xn, const DeviceMatrix& w) {
  float* kernel = pass.space.floats(stage, pass.rows * w.view.rows);
  linear(pass.stream, xn, pass.rows, w.view, nullptr, kernel, device_.products);
  emit(pass, stage, kernel, {pass.rows, 2, config.conv_taps, config.conv_groups});
  return kernel;
}

float* DeviceDrafter::convolved(Pass& pass, const std::string& stage, const float* x, const float* kernel, const DeviceVector& base,
                                int64_t side) {
  float* y = pass.space.floats(stage, pass.rows * config.hidden);
  dynamic_conv(pass.stream, x, kernel, base.get(), pass.rows, config.hidden, config.conv_taps, config.conv_groups, side, y);
  emit(pass, stage, y, {pass.rows, config.hidden});
  return y;
}

const float* DeviceDrafter::attend(int64_t index, Pass& pass, const float* q) {
  const std::string path = "draft.L" + std::to_string(index) + ".";
  const auto at = static_cast<size_t>(index);
  const Pool& pool = pools_[at];
  const int64_t cells = held.count() + pass.rows;
  emit(pass, path + "k_cells", pool.k.get(), {cells, config.kv_heads, config.head_dim}, device_.cell_dtype);
  emit(pass, path + "v_cells", pool.v.get(), {cells, config.kv_heads, config.head_dim}, device_.cell_dtype);
  const uint8_t* mask = pass.masks[2 * config.causal[at] + config.sliding[at]];
  float* out = pass.space.floats(path + "attn", pass.rows * config.query_width());
  const AttentionSizes sizes{pass.rows, config.heads, config.kv_heads, config.head_dim, cells};
  const CellRows keys{pool.k.get(), device_.cell_dtype}, values{pool.v.get(), device_.cell_dtype};
  attention(pass.stream, sizes, q, keys, values, mask, static_cast<float>(config.attn_scale), nullptr, out);
  emit(pass, path + "attn", out, {pass.rows, config.heads, config.head_dim});
  return out;
}

const float* DeviceDrafter::gated(const std::string& path, Pass& pass, const float* xn, const float* attended, const DeviceMatrix& w) {
  if (config.attn_gate == Gate::None) return attended;
  const float* logits = project(pass, path + "attn_gate", xn, w, nullptr, 0);
  float* y = pass.space.floats(path + "attn_gated", pass.rows * config.query_width());
  const bool per_value = w.view.rows != config.heads || config.head_dim == 1;
  gate(pass.stream, attended, logits, pass.rows, config.heads, config.head_dim, per_value, config.attn_gate == Gate::Softplus, y);
  emit(pass, path + "attn_gated", y, {pass.rows, config.heads, config.head_dim});
  return y;
}

void DeviceDrafter::layer(int64_t index, Pass& pass, const float*& hidden) {
  const DeviceLayer& w = weights_.layers[static_cast<size_t>(index)];
  Pool& pool = pools_[static_cast<size_t>(index)];
  const std::string path = "draft.L" + std::to_string(index) + ".";
  const int64_t rows = pass.rows, heads = config.heads, kv_heads = config.kv_heads;
  const float *kernel = nullptr, *xn = normalise(pass, path + "xn", hidden, w.input_norm, 0);
  if (config.conv_taps) {
    kernel = convolution_kernel(pass, path + "attn_kernel", xn, w.attn_conv_kernel);
    xn = convolved(pass, path + "attn_conv_in", xn, kernel, w.attn_conv_base, 0);
  }
  const float* q = project(pass, path + "q_raw", xn, w.q, &w.q_bias, heads);
  const float* k = project(pass, path + "k_raw", xn, w.k, &w.k_bias, kv_heads);
  const float* v = project(pass, path + "v", xn, w.v, &w.v_bias, kv_heads);
  q = normalise(pass, path + "q_norm", q, w.q_norm, heads);
  k = normalise(pass, path + "k_norm", k, w.k_norm, kv_heads);
  q = rotate(pass, path + "q_rope", q, heads);
  store_cells(pass, rotate(pass, path + "k_rope", k, kv_heads), pool.k, pass.cell);
  store_cells(pass, v, pool.v, pass.cell);
  const float* attended = gated(path, pass, xn, attend(index, pass, q), w.attn_gate);
  const float* o = project(pass, path + "o", attended, w.o, &w.o_bias, 0);
  if (config.conv_taps) o = convolved(pass, path + "attn_conv_out", o, kernel, w.attn_conv_base, 1);
  const float* middle = residual(pass, path + "h_attn", hidden, o);
  const float* xn_mlp = normalise(pass, path + "xn_mlp", middle, w.post_norm, 0);
  if (config.conv_taps) {
    kernel = convolution_kernel(pass, path + "mlp_kernel", xn_mlp, w.mlp_conv_kernel);
    xn_mlp = convolved(pass, path + "mlp_conv_in", xn_mlp, kernel, w.mlp_conv_base, 0);
  }
  const float* g = project(pass, path + "mlp_gate", xn_mlp, w.gate, nullptr, 0);
  const float* up = project(pass, path + "mlp_up", xn_mlp, w.up, nullptr, 0);
  float* act = pass.space.floats(path + "mlp_act", rows * config.intermediate);
  swiglu(pass.stream, g, up, rows * config.intermediate, false, act);
  emit(pass, path + "mlp_act", act, {rows, config.intermediate});
  const float* down = project(pass, path + "mlp_down", act, w.down, nullptr, 0);
  if (config.conv_taps) down = convolved(pass, path + "mlp_conv_out", down, kernel, w.mlp_conv_base, 1);
  hidden = residual(pass, path + "h_mlp", middle, down);
}

void DeviceDrafter::propose(const int32_t* block_ids, int64_t rows, int64_t pos, int32_t* ids, float* top2, Rows logits) {
  recorder_.forget();
  reserve(held.count() + rows);
  appended_.hold(blocks_);
  Pass pass{blocks_, block_space_, rows, 0, pos, held.count()};
  ids_.grow(rows);
  int32_t* staged = ids_stage_.fill(rows);
  std::copy(block_ids, block_ids + rows, staged);
  upload(blocks_, ids_.get(), staged, rows * 4);
  ids_stage_.issued(blocks_);
  upload_table(block_table_stage_, pass);
  upload_masks(pass);
  float* embedded = block_space_.floats("draft.embed", rows * config.hidden);
  gather(blocks_, weights_.embedding.view, ids_.get(), rows, static_cast<float>(config.embed_scale), embedded);
  emit(pass, "draft.embed", embedded, {rows, config.hidden});
  const float* hidden = embedded;
  for (int64_t l = 0; l < config.layers; ++l) layer(l, pass, hidden);
  const float* final_norm = normalise(pass, "draft.final_norm", hidden, weights_.norm, 0);
  const float* scores = score(pass, final_norm);
  draft(pass, final_norm, scores);
  fetch(pass, scores, logits.data != nullptr);
  recorder_.deliver(ctx);
  evict();
  proposed_.record(blocks_);
  blocks_.wait();
  finish(rows, ids, top2, logits);
}

// Logits of the block's rows, their two best, and the picks.
const float* DeviceDrafter::score(Pass& pass, const float* hidden) {
  const int64_t rows = pass.rows, vocab = config.draft_vocab;
  float* raw = pass.space.floats("raw", rows * vocab);
  float* logits = pass.space.floats("draft.logits", rows * vocab);
  linear(pass.stream, hidden, rows, weights_.head.view, nullptr, raw, device_.products);
  softcap(pass.stream, raw, rows * vocab, static_cast<float>(config.output_multiplier), static_cast<float>(config.softcap), logits);
  emit(pass, "draft.logits", logits, {rows, vocab});
  best_ids_.grow(2 * rows);
  best_.grow(2 * rows);
  picks_.grow(rows);
  top2(pass.stream, logits, rows, vocab, best_ids_.get(), best_.get());
  backend::copy(pass.stream, picks_.get(), 4, best_ids_.get(), 8, 4, rows, Direction::Across, Site());
  emit(pass, "draft.pick", picks_.get(), {rows}, DLAB_I32);
  return logits;
}

// Issues the copies of what the caller gets.
void DeviceDrafter::fetch(Pass& pass, const float* logits, bool all) {
  const int64_t rows = pass.rows, drafted = rows - first_draft(), vocab = config.draft_vocab;
  ids_out_.grow(rows);
  best_out_.grow(2 * rows);
  download(pass.stream, ids_out_.get(), picks_.get(), rows * 4);
  download(pass.stream, best_out_.get(), best_.get(), rows * 8);
  drafts_out_.grow(drafted);
  download(pass.stream, drafts_out_.get(), drafts_.get(), drafted * 4);
  if (config.confidence != Confidence::None) {
    confidence_out_.grow(drafted);
    download(pass.stream, confidence_out_.get(), confidence_.get(), drafted * 4);
  }
  if (!all) return;
  logits_out_.grow(rows * vocab);
  download(pass.stream, logits_out_.get(), logits, rows * vocab * 4);
}

// Everything has run.
void DeviceDrafter::finish(int64_t rows, int32_t* ids, float* top2, Rows logits) {
  std::copy_n(ids_out_.get(), rows, ids);
  if (top2) std::copy_n(best_out_.get(), 2 * rows, top2);
  for (int64_t r = 0; logits.data && r < rows; ++r) std::copy_n(logits_out_.get() + r * logits.width, logits.width, logits.row(r));
  const int64_t drafted = rows - first_draft();
  drafts.assign(drafts_out_.get(), drafts_out_.get() + drafted);
  confidence.clear();
  if (config.confidence != Confidence::None) confidence.assign(confidence_out_.get(), confidence_out_.get() + drafted);
  proposed = true;
}

}  // namespace gpu
}  // namespace dlab
