#include "drafter.hpp"

#include <algorithm>

#include "ops.hpp"

namespace dlab {

namespace {

using Values = std::vector<float>;

const float* or_null(const Values& v) { return v.empty() ? nullptr : v.data(); }

std::vector<int64_t> consecutive(int64_t first, int64_t n) {
  std::vector<int64_t> list(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) list[static_cast<size_t>(i)] = first + i;
  return list;
}

}  // namespace

// What a block carries from layer to layer.
struct CpuDrafter::Block {
  int64_t rows;
  std::vector<int64_t> pos;
  Values table, hidden;
};

CpuDrafter::CpuDrafter(dlab_ctx& context, Config configuration, DrafterWeights parameters)
    : dlab_drafter(context, std::move(configuration)),
      weights(std::move(parameters)),
      inv_freq(config.frequencies()),
      caches(static_cast<size_t>(config.layers)) {}

std::unique_ptr<dlab_drafter> make_drafter(dlab_ctx& ctx, Config config, const dlab_named_tensor* weights, int32_t n, bool borrow) {
  DrafterWeights taken = DrafterWeights::take(ctx, config, weights, n, borrow);
  return std::make_unique<CpuDrafter>(ctx, std::move(config), std::move(taken));
}

Values CpuDrafter::project(const std::string& stage, Rows x, const Weight& w, const Values& bias, int64_t heads, int64_t row0) {
  Values y = values(x.rows, w.rows);
  ops::linear(ctx, x, w, or_null(bias), rows_of(y, x.rows));
  if (heads) emit(stage, y.data(), row0, {x.rows, heads, w.rows / heads});
  else emit(stage, y.data(), row0, {x.rows, w.rows});
  return y;
}

Values CpuDrafter::normalise(const std::string& stage, const Values& x, int64_t rows, const Values& w, int64_t heads, int64_t row0) {
  Values y(x.size());
  const int64_t vectors = rows * std::max<int64_t>(heads, 1);
  ops::rms_norm(ctx, rows_of(x, vectors), w.data(), static_cast<int64_t>(w.size()), config.eps, 0.0, 1, rows_of(y, vectors));
  if (heads) emit(stage, y.data(), row0, {rows, heads, config.head_dim});
  else emit(stage, y.data(), row0, {rows, config.hidden});
  return y;
}

Values CpuDrafter::normalise_taps(Rows taps, int64_t row0) {
  Values y = values(taps.rows, taps.width);
  const int64_t size = static_cast<int64_t>(weights.tap_norm.size());
  ops::rms_norm(ctx, taps, weights.tap_norm.data(), size, config.eps, 0.0, config.n_taps, rows_of(y, taps.rows));
  emit("draft.tap_norm", y.data(), row0, {taps.rows, taps.width});
  return y;
}

Values CpuDrafter::gated(const std::string& path, const Values& xn, Values attended, int64_t rows, const Weight& w) {
  if (config.attn_gate == Gate::None) return attended;
  const Values logits = project(path + "attn_gate", rows_of(xn, rows), w, {}, 0, 0);
  Values y(attended.size());
  ops::gate(ctx, rows_of(attended, rows), rows_of(logits, rows), config.heads, config.attn_gate == Gate::Softplus, rows_of(y, rows));
  emit(path + "attn_gated", y.data(), 0, {rows, config.heads, config.head_dim});
  return y;
}

Values CpuDrafter::rotate(const std::string& stage, const Values& x, int64_t rows, const Values& table, int64_t heads, int64_t row0) {
  Values y(x.size());
  ops::rope(ctx, rows_of(x, rows), table, heads, config.rope_dim, config.rope_style == "interleaved", rows_of(y, rows));
  emit(stage, y.data(), row0, {rows, heads, config.head_dim});
  return y;
}

Values CpuDrafter::convolution_kernel(const std::string& stage, const Values& xn, int64_t rows, const Weight& w) {
  Values kernel = values(rows, w.rows);
  ops::linear(ctx, rows_of(xn, rows), w, nullptr, rows_of(kernel, rows));
  emit(stage, kernel.data(), 0, {rows, 2, config.conv_taps, config.conv_groups});
  return kernel;
}

Values CpuDrafter::convolved(const std::string& stage, const Values& x, const Values& kernel, const Values& base, int64_t rows,
                               int64_t side) {
  Values y(x.size());
  ops::dynamic_conv(ctx, rows_of(x, rows), rows_of(kernel, rows), base.data(), config.conv_taps, config.conv_groups, side, rows_of(y, rows));
  emit(stage, y.data(), 0, {rows, config.hidden});
  return y;
}

Values CpuDrafter::rope_table(const std::vector<int64_t>& pos) const {
  return ops::rope_table(pos.data(), static_cast<int64_t>(pos.size()), inv_freq.data(), config.rope_dim / 2, 1.0);
}

// Cells of the first so many rows stay.
void CpuDrafter::trim(int64_t rows) {
  for (Cache& cache : caches) {
    cache.k.resize(static_cast<size_t>(rows * config.cell_width()));
    cache.v.resize(cache.k.size());
  }
}

void CpuDrafter::truncate(int64_t kept) {
  held.truncate(kept);
  trim(held.count());
}

void CpuDrafter::append(Rows taps, int64_t pos0) {
  held.require(pos0);
  const int64_t rows = taps.rows;
  std::vector<Cache> fresh(rows ? caches.size() : 0);
  if (rows) {
    emit("draft.taps", taps.data, pos0, {rows, taps.width}, DLAB_F32, taps.stride * 4);
    const Values normed_taps = config.tap_norm ? normalise_taps(taps, pos0) : Values{};
    const Values features = project("draft.fc", config.tap_norm ? rows_of(normed_taps, rows) : taps, weights.fc, {}, 0, pos0);
    const Values encoded = normalise("draft.ctx", features, rows, weights.hidden_norm, 0, pos0);
    const Values table = rope_table(consecutive(pos0, rows));
    for (size_t l = 0; l < fresh.size(); ++l) {
      const LayerWeights& w = weights.layers[l];
      const std::string path = "draft.L" + std::to_string(l) + ".ctx.";
      const Values own = config.ctx_layernorm ? normalise(path + "xn", encoded, rows, w.input_norm, 0, pos0) : Values{};
      const Rows input = rows_of(config.ctx_layernorm ? own : encoded, rows);
      const Values k = project(path + "k_raw", input, w.k, w.k_bias, config.kv_heads, pos0);
      fresh[l].v = project(path + "v", input, w.v, w.v_bias, config.kv_heads, pos0);
      const Values normed = normalise(path + "k_norm", k, rows, w.k_norm, config.kv_heads, pos0);
      fresh[l].k = rotate(path + "k_rope", normed, rows, table, config.kv_heads, pos0);
    }
  }
  // Reserve first: from here on nothing fails, so the context changes as a whole or not at all.
  const int64_t kept = held.before(pos0);
  for (size_t l = 0; l < fresh.size(); ++l) {
    caches[l].k.reserve(caches[l].k.size() + fresh[l].k.size());
    caches[l].v.reserve(caches[l].v.size() + fresh[l].v.size());
  }
  held.append(pos0, rows);
  trim(kept);
  for (size_t l = 0; l < fresh.size(); ++l) {
    caches[l].k.insert(caches[l].k.end(), fresh[l].k.begin(), fresh[l].k.end());
    caches[l].v.insert(caches[l].v.end(), fresh[l].v.begin(), fresh[l].v.end());
  }
}

Values CpuDrafter::attend(int64_t index, const Block& block, const Values& q, const Values& k, const Values& v) {
  const std::string path = "draft.L" + std::to_string(index) + ".";
  const Cache& cache = caches[static_cast<size_t>(index)];
  const int64_t cells = held.count() + block.rows;
  const auto join = [](const Values& context, const Values& own) {
    Values all;
    all.reserve(context.size() + own.size());
    all.insert(all.end(), context.begin(), context.end());
    all.insert(all.end(), own.begin(), own.end());
    return all;
  };
  const Values keys = join(cache.k, k), vals = join(cache.v, v);
  emit(path + "k_cells", keys.data(), 0, {cells, config.kv_heads, config.head_dim});
  emit(path + "v_cells", vals.data(), 0, {cells, config.kv_heads, config.head_dim});
  std::vector<uint8_t> visible(static_cast<size_t>(block.rows * cells));
  held.visible(index, block.pos[0], block.rows, visible.data());
  const auto cells_of = [&](const Values& x) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(x.data());
    return ops::Cells{bytes, DLAB_F32, cells, config.kv_heads, config.head_dim, config.cell_width() * 4};
  };
  Values out(q.size());
  ops::attention(ctx, rows_of(q, block.rows), config.heads, cells_of(keys), cells_of(vals), visible.data(), config.attn_scale, nullptr,
                 rows_of(out, block.rows));
  emit(path + "attn", out.data(), 0, {block.rows, config.heads, config.head_dim});
  return out;
}

Values CpuDrafter::residual(const std::string& stage, const Values& x, const Values& y, int64_t rows) {
  Values sum(x.size());
  ops::add(ctx, rows_of(x, rows), rows_of(y, rows), rows_of(sum, rows));
  emit(stage, sum.data(), 0, {rows, config.hidden});
  return sum;
}

void CpuDrafter::layer(int64_t index, Block& block) {
  const LayerWeights& w = weights.layers[static_cast<size_t>(index)];
  const std::string path = "draft.L" + std::to_string(index) + ".";
  const int64_t rows = block.rows;
  Values kernel, xn = normalise(path + "xn", block.hidden, rows, w.input_norm, 0, 0);
  if (config.conv_taps) {
    kernel = convolution_kernel(path + "attn_kernel", xn, rows, w.attn_conv_kernel);
    xn = convolved(path + "attn_conv_in", xn, kernel, w.attn_conv_base, rows, 0);
  }
  const Values q_raw = project(path + "q_raw", rows_of(xn, rows), w.q, w.q_bias, config.heads, 0);
  const Values k_raw = project(path + "k_raw", rows_of(xn, rows), w.k, w.k_bias, config.kv_heads, 0);
  const Values v = project(path + "v", rows_of(xn, rows), w.v, w.v_bias, config.kv_heads, 0);
  const Values q_norm = normalise(path + "q_norm", q_raw, rows, w.q_norm, config.heads, 0);
  const Values k_norm = normalise(path + "k_norm", k_raw, rows, w.k_norm, config.kv_heads, 0);
  const Values q = rotate(path + "q_rope", q_norm, rows, block.table, config.heads, 0);
  const Values k = rotate(path + "k_rope", k_norm, rows, block.table, config.kv_heads, 0);
  const Values attended = gated(path, xn, attend(index, block, q, k, v), rows, w.attn_gate);
  Values o = project(path + "o", rows_of(attended, rows), w.o, w.o_bias, 0, 0);
  if (config.conv_taps) o = convolved(path + "attn_conv_out", o, kernel, w.attn_conv_base, rows, 1);
  const Values middle = residual(path + "h_attn", block.hidden, o, rows);
  Values xn_mlp = normalise(path + "xn_mlp", middle, rows, w.post_norm, 0, 0);
  if (config.conv_taps) {
    kernel = convolution_kernel(path + "mlp_kernel", xn_mlp, rows, w.mlp_conv_kernel);
    xn_mlp = convolved(path + "mlp_conv_in", xn_mlp, kernel, w.mlp_conv_base, rows, 0);
  }
  const Values gate = project(path + "mlp_gate", rows_of(xn_mlp, rows), w.gate, {}, 0, 0);
  const Values up = project(path + "mlp_up", rows_of(xn_mlp, rows), w.up, {}, 0, 0);
  Values act(gate.size());
  ops::swiglu(ctx, rows_of(gate, rows), rows_of(up, rows), false, rows_of(act, rows));
  emit(path + "mlp_act", act.data(), 0, {rows, config.intermediate});
  Values down = project(path + "mlp_down", rows_of(act, rows), w.down, {}, 0, 0);
  if (config.conv_taps) down = convolved(path + "mlp_conv_out", down, kernel, w.mlp_conv_base, rows, 1);
  block.hidden = residual(path + "h_mlp", middle, down, rows);
}

void CpuDrafter::propose(const int32_t* block_ids, int64_t rows, int64_t pos, int32_t* ids, float* top2, Rows logits) {
  Block block{rows, consecutive(pos, rows), {}, values(rows, config.hidden)};
  block.table = rope_table(block.pos);
  ops::gather(ctx, weights.embedding, block_ids, config.embed_scale, rows_of(block.hidden, rows));
  emit("draft.embed", block.hidden.data(), 0, {rows, config.hidden});
  for (int64_t l = 0; l < config.layers; ++l) layer(l, block);
  const Values final_norm = normalise("draft.final_norm", block.hidden, rows, weights.norm, 0, 0);
  Outcome outcome;
  outcome.logits = values(rows, config.draft_vocab);
  {
    Values raw = values(rows, config.draft_vocab);
    ops::linear(ctx, rows_of(final_norm, rows), weights.head, nullptr, rows_of(raw, rows));
    ops::softcap(ctx, rows_of(raw, rows), config.output_multiplier, config.softcap, rows_of(outcome.logits, rows));
  }
  emit("draft.logits", outcome.logits.data(), 0, {rows, config.draft_vocab});
  std::vector<int32_t> pairs(static_cast<size_t>(2 * rows));
  outcome.top2 = values(rows, 2);
  ops::top2(ctx, rows_of(outcome.logits, rows), pairs.data(), outcome.top2.data());
  for (int64_t r = 0; r < rows; ++r) outcome.ids.push_back(pairs[static_cast<size_t>(2 * r)]);
  emit("draft.pick", outcome.ids.data(), 0, {rows}, DLAB_I32);
  Drafts chosen = draft(block_ids[0], rows, final_norm, outcome);
  drafts = std::move(chosen.ids);
  confidence = std::move(chosen.confidence);
  proposed = true;
  evict();
  std::copy(outcome.ids.begin(), outcome.ids.end(), ids);
  if (top2) std::copy(outcome.top2.begin(), outcome.top2.end(), top2);
  for (int64_t r = 0; logits.data && r < rows; ++r)
    std::copy_n(outcome.logits.begin() + r * logits.width, logits.width, logits.row(r));
}

void CpuDrafter::evict() {
  const HeldRows::Leaving cells = held.leaving();
  const auto width = static_cast<std::ptrdiff_t>(config.cell_width());
  for (Cache& cache : caches)
    for (Values* values : {&cache.k, &cache.v}) values->erase(values->begin() + cells.first * width, values->begin() + cells.last * width);
  held.evict(cells);
}

void CpuDrafter::read_cells(int64_t layer, Rows k, Rows v) {
  const Cache& cache = caches[static_cast<size_t>(layer)];
  const int64_t width = config.cell_width();
  for (int64_t r = 0; r < held.count(); ++r) {
    std::copy_n(cache.k.begin() + r * width, width, k.row(r));
    std::copy_n(cache.v.begin() + r * width, width, v.row(r));
  }
}

}  // namespace dlab
