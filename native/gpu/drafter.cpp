#include "gpu/drafter.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/ops.hpp"
#include "formats.hpp"

namespace dlab::gpu {

namespace {

constexpr int64_t kAppendRows = 256;  // rows that go through the device together

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

Buffer<float> to_device(StreamHandle stream, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  if (!count) return {};
  Buffer<float> made(count);
  upload(stream, made.get(), values.data(), count * 4);
  return made;
}

}  // namespace

// One append or propose.
struct Drafter::Pass {
  StreamHandle stream;
  Workspace& space;
  int64_t rows;
  int64_t row0;  // as dumps count them
  int64_t pos;   // position of the first row
  int64_t cell;  // where the pass's own cells go
  const float* table = nullptr;
  const uint8_t* masks[4] = {};  // by 2 * causal + sliding
};

Drafter::Drafter(Gpu& context, Config configuration, const DrafterWeights& w) : gpu(context), config(std::move(configuration)), target_ids_(w.target_ids) {
  require_supported();
  const StreamHandle s = blocks_;
  fc_ = to_device(s, w.fc);
  embedding_ = to_device(s, w.embedding);
  head_ = to_device(s, w.head);
  hidden_norm_ = to_device(s, w.hidden_norm);
  norm_ = to_device(s, w.norm);
  tap_norm_ = to_device(s, w.tap_norm);
  for (const LayerWeights& l : w.layers) {
    DeviceLayer made;
    for (auto [to, from] : {std::pair{&made.q, &l.q}, {&made.k, &l.k}, {&made.v, &l.v}, {&made.o, &l.o}, {&made.gate, &l.gate},
                            {&made.up, &l.up}, {&made.down, &l.down}, {&made.attn_gate, &l.attn_gate}})
      *to = to_device(s, *from);
    for (auto [to, from] : {std::pair{&made.input_norm, &l.input_norm}, {&made.post_norm, &l.post_norm}, {&made.q_norm, &l.q_norm},
                            {&made.k_norm, &l.k_norm}, {&made.q_bias, &l.q_bias}, {&made.k_bias, &l.k_bias}, {&made.v_bias, &l.v_bias},
                            {&made.o_bias, &l.o_bias}})
      *to = to_device(s, *from);
    layers_.push_back(std::move(made));
  }
  pools_.resize(layers_.size());
  for (int64_t i = 0; i < config.rope_dim; i += 2)
    inv_freq_.push_back(std::pow(config.rope_theta, -static_cast<double>(i) / static_cast<double>(config.rope_dim)));
  blocks_.wait();
}

void Drafter::require_supported() const {
  const char* part = config.conv_taps                            ? "conv_taps"
                     : config.selector_rank                      ? "selector_rank"
                     : config.markov != Markov::None             ? "markov"
                     : config.confidence != Confidence::None     ? "confidence"
                                                                 : nullptr;
  if (part) fail(DLAB_E_UNSUPPORTED, "config key '%s': this library has no such part; use the library cpu", part);
  if (config.head_dim > kMaxHeadDim)
    fail(DLAB_E_UNSUPPORTED, "head_dim=%lld: this library takes up to %lld", ll(config.head_dim), ll(kMaxHeadDim));
}

void Drafter::emit(Pass& pass, const std::string& stage, const void* device, std::vector<int64_t> shape, int32_t dtype) {
  if (!wants_dump(gpu, stage)) return;
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const int64_t bytes = count * (dtype == DLAB_F16 ? 2 : 4);
  std::vector<uint8_t> host(static_cast<size_t>(bytes));
  download(pass.stream, host.data(), device, bytes);
  backend::wait(pass.stream, Site());
  dump_dense(gpu, stage, host.data(), pass.row0, shape, dtype);
}

float* Drafter::project(Pass& pass, const std::string& stage, const float* x, const DeviceMatrix& w, const Buffer<float>* bias, int64_t heads) {
  float* y = pass.space.floats(stage, pass.rows * w.view.rows);
  linear(pass.stream, x, pass.rows, w.view, bias ? bias->get() : nullptr, y);
  if (heads) emit(pass, stage, y, {pass.rows, heads, w.view.rows / heads});
  else emit(pass, stage, y, {pass.rows, w.view.rows});
  return y;
}

float* Drafter::normalise(Pass& pass, const std::string& stage, const float* x, const Buffer<float>& w, int64_t heads) {
  const int64_t vectors = pass.rows * std::max<int64_t>(heads, 1), width = heads ? config.head_dim : config.hidden;
  float* y = pass.space.floats(stage, vectors * width);
  rms_norm(pass.stream, x, vectors, width, 1, w.get(), false, config.eps, 0.0, y);
  if (heads) emit(pass, stage, y, {pass.rows, heads, width});
  else emit(pass, stage, y, {pass.rows, width});
  return y;
}

float* Drafter::rotate(Pass& pass, const std::string& stage, const float* x, int64_t heads) {
  float* y = pass.space.floats(stage, pass.rows * heads * config.head_dim);
  const bool interleaved = config.rope_style == "interleaved";
  rope(pass.stream, x, pass.table, pass.rows, heads, config.head_dim, config.rope_dim, interleaved, y);
  emit(pass, stage, y, {pass.rows, heads, config.head_dim});
  return y;
}

void Drafter::store_cells(Pass& pass, const float* x, Buffer<uint8_t>& cells, int64_t cell) {
  convert(pass.stream, x, DLAB_F32, pass.rows * config.cell_width(), cell_at(cells, cell), gpu.cell_dtype);
}

void Drafter::require_held(int64_t kept) const {
  if (kept > length_) fail(DLAB_E_STATE, "row %lld is beyond the %lld committed rows", ll(kept), ll(length_));
  if (kept > config.sink && kept < dropped_)
    fail(DLAB_E_STATE, "cannot go back to %lld rows: rows %lld..%lld were evicted", ll(kept), ll(config.sink), ll(dropped_ - 1));
}

void Drafter::truncate(int64_t kept) {
  require_held(kept);
  while (!positions.empty() && positions.back() >= kept) positions.pop_back();
  exposed_.erase(std::lower_bound(exposed_.begin(), exposed_.end(), kept), exposed_.end());
  length_ = kept;
  if (kept <= config.sink) dropped_ = 0;
}

// Room for so many cells in every pool; the held ones move along.
void Drafter::reserve(int64_t cells) {
  if (cells <= capacity_) return;
  const int64_t room = std::max(cells, capacity_ + capacity_ / 2);
  std::vector<Pool> grown;
  for (size_t l = 0; l < pools_.size(); ++l) {
    grown.push_back({Buffer<uint8_t>(room * cell_bytes()), Buffer<uint8_t>(room * cell_bytes())});
    for (auto [to, from] : {std::pair{&grown[l].k, &pools_[l].k}, {&grown[l].v, &pools_[l].v}})
      move(appends_, to->get(), from->get(), held() * cell_bytes());
  }
  appends_.wait();
  pools_ = std::move(grown);
  capacity_ = room;
}

// By way of a buffer apart, since the two places may overlap.
void Drafter::move_cells(StreamHandle stream, int64_t from, int64_t to, int64_t count) {
  if (from == to || count == 0) return;
  const int64_t bytes = count * cell_bytes();
  moved_.grow(bytes);
  for (Pool& pool : pools_)
    for (Buffer<uint8_t>* cells : {&pool.k, &pool.v}) {
      move(stream, moved_.get(), cell_at(*cells, from), bytes);
      move(stream, cell_at(*cells, to), moved_.get(), bytes);
    }
}

// Computes the cells of some rows and writes them from `cell` on, behind everything held.
void Drafter::append_rows(Rows taps, int64_t pos0, int64_t cell) {
  Pass pass{appends_, append_space_, taps.rows, pos0, pos0, cell, nullptr, {}};
  const int64_t rows = taps.rows, count = rows * taps.width, pairs = config.rope_dim / 2;
  float* staged = taps_stage_.fill(count);
  for (int64_t r = 0; r < rows; ++r) memcpy(staged + r * taps.width, taps.row(r), static_cast<size_t>(taps.width) * 4);
  float* x = append_space_.floats("draft.taps", count);
  upload(appends_, x, staged, count * 4);
  taps_stage_.issued(appends_);
  pass.table = append_space_.floats("table", rows * pairs * 2);
  upload_table(append_table_stage_, pass);
  emit(pass, "draft.taps", x, {rows, taps.width});
  if (config.tap_norm) {
    float* normed = append_space_.floats("draft.tap_norm", count);
    rms_norm(appends_, x, rows, taps.width, config.n_taps, tap_norm_.get(), false, config.eps, 0.0, normed);
    emit(pass, "draft.tap_norm", normed, {rows, taps.width});
    x = normed;
  }
  const float* features = project(pass, "draft.fc", x, fc_, nullptr, 0);
  const float* encoded = normalise(pass, "draft.ctx", features, hidden_norm_, 0);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const DeviceLayer& w = layers_[l];
    const std::string path = "draft.L" + std::to_string(l) + ".ctx.";
    const float* input = config.ctx_layernorm ? normalise(pass, path + "xn", encoded, w.input_norm, 0) : encoded;
    const float* k = project(pass, path + "k_raw", input, w.k, &w.k_bias, config.kv_heads);
    const float* v = project(pass, path + "v", input, w.v, &w.v_bias, config.kv_heads);
    k = rotate(pass, path + "k_rope", normalise(pass, path + "k_norm", k, w.k_norm, config.kv_heads), config.kv_heads);
    store_cells(pass, k, pools_[l].k, cell);
    store_cells(pass, v, pools_[l].v, cell);
  }
}

void Drafter::append(Rows taps, int64_t pos0) {
  require_held(pos0);
  proposed_.hold(appends_);
  reserve(held() + taps.rows + config.block_size);
  const int64_t behind = held();
  for (int64_t r = 0; r < taps.rows; r += kAppendRows)
    append_rows({taps.row(r), std::min(kAppendRows, taps.rows - r), taps.width, taps.stride}, pos0 + r, behind + r);
  // All is computed: now the context changes.
  std::vector<int64_t> kept = positions;
  while (!kept.empty() && kept.back() >= pos0) kept.pop_back();
  move_cells(appends_, behind, static_cast<int64_t>(kept.size()), taps.rows);
  for (int64_t r = 0; r < taps.rows; ++r) kept.push_back(pos0 + r);
  appended_.record(appends_);
  std::vector<int64_t> turned = rotated(pos0, taps.rows);
  truncate(pos0);
  positions = std::move(kept);
  length_ = pos0 + taps.rows;
  exposed_ = std::move(turned);
}

// What a rotating cache of W - 1 rows holds after rows pos0 .. were appended: W - 2 of what it held, and the last W - 1 of the new ones.
std::vector<int64_t> Drafter::rotated(int64_t pos0, int64_t rows) const {
  if (!config.rotates()) return {};
  std::vector<int64_t> kept(exposed_.begin(), std::lower_bound(exposed_.begin(), exposed_.end(), pos0));
  const int64_t room = std::max<int64_t>(config.window - 2, 0), size = static_cast<int64_t>(kept.size());
  if (size > room) kept.erase(kept.begin(), kept.begin() + (size - room));
  for (int64_t r = std::max<int64_t>(rows - (config.window - 1), 0); r < rows; ++r) kept.push_back(pos0 + r);
  return kept;
}

void Drafter::upload_table(Staging<float>& staging, Pass& pass) {
  std::vector<int64_t> at(static_cast<size_t>(pass.rows));
  for (int64_t r = 0; r < pass.rows; ++r) at[static_cast<size_t>(r)] = pass.pos + r;
  const std::vector<float> table = ops::rope_table(at.data(), pass.rows, inv_freq_.data(), config.rope_dim / 2, 1.0);
  const auto count = static_cast<int64_t>(table.size());
  float* staged = staging.fill(count);
  std::copy(table.begin(), table.end(), staged);
  upload(pass.stream, const_cast<float*>(pass.table), staged, count * 4);
  staging.issued(pass.stream);
}

// One mask [rows][cells] for each combination of causal and sliding that a layer has.
void Drafter::upload_masks(Pass& pass) {
  const int64_t cells = held() + pass.rows, bytes = pass.rows * cells;
  uint8_t* staged = mask_stage_.fill(4 * bytes);
  masks_.grow(4 * bytes);
  for (int64_t l = 0; l < config.layers; ++l) {
    const auto kind = static_cast<size_t>(2 * config.causal[static_cast<size_t>(l)] + config.sliding[static_cast<size_t>(l)]);
    if (pass.masks[kind]) continue;
    uint8_t* mask = staged + static_cast<int64_t>(kind) * bytes;
    for (int64_t r = 0; r < pass.rows; ++r)
      for (int64_t c = 0; c < cells; ++c) {
        const bool own = c >= held();
        const int64_t at = own ? pass.pos + c - held() : positions[static_cast<size_t>(c)];
        const bool exposes = !own && config.rotates() && std::binary_search(exposed_.begin(), exposed_.end(), at);
        mask[r * cells + c] = config.sees(l, pass.pos + r, at, pass.pos, !own, exposes);
      }
    uint8_t* to = masks_.get() + static_cast<int64_t>(kind) * bytes;
    upload(pass.stream, to, mask, bytes);
    pass.masks[kind] = to;
  }
  mask_stage_.issued(pass.stream);
}

float* Drafter::attend(int64_t index, Pass& pass, const float* q) {
  const std::string path = "draft.L" + std::to_string(index) + ".";
  const Pool& pool = pools_[static_cast<size_t>(index)];
  const int64_t cells = held() + pass.rows;
  emit(pass, path + "k_cells", pool.k.get(), {cells, config.kv_heads, config.head_dim}, gpu.cell_dtype);
  emit(pass, path + "v_cells", pool.v.get(), {cells, config.kv_heads, config.head_dim}, gpu.cell_dtype);
  const auto at = static_cast<size_t>(index);
  const uint8_t* mask = pass.masks[2 * config.causal[at] + config.sliding[at]];
  float* out = pass.space.floats(path + "attn", pass.rows * config.query_width());
  const AttentionSizes sizes{pass.rows, config.heads, config.kv_heads, config.head_dim, cells};
  const CellRows keys{pool.k.get(), gpu.cell_dtype}, values{pool.v.get(), gpu.cell_dtype};
  attention(pass.stream, sizes, q, keys, values, mask, static_cast<float>(config.attn_scale), nullptr, out);
  emit(pass, path + "attn", out, {pass.rows, config.heads, config.head_dim});
  return out;
}

void Drafter::layer(int64_t index, Pass& pass, float*& hidden) {
  const DeviceLayer& w = layers_[static_cast<size_t>(index)];
  Pool& pool = pools_[static_cast<size_t>(index)];
  const std::string path = "draft.L" + std::to_string(index) + ".";
  const int64_t rows = pass.rows, heads = config.heads, kv_heads = config.kv_heads, n = rows * config.hidden;
  const float* xn = normalise(pass, path + "xn", hidden, w.input_norm, 0);
  const float* q = project(pass, path + "q_raw", xn, w.q, &w.q_bias, heads);
  const float* k = project(pass, path + "k_raw", xn, w.k, &w.k_bias, kv_heads);
  const float* v = project(pass, path + "v", xn, w.v, &w.v_bias, kv_heads);
  q = normalise(pass, path + "q_norm", q, w.q_norm, heads);
  k = normalise(pass, path + "k_norm", k, w.k_norm, kv_heads);
  q = rotate(pass, path + "q_rope", q, heads);
  store_cells(pass, rotate(pass, path + "k_rope", k, kv_heads), pool.k, pass.cell);
  store_cells(pass, v, pool.v, pass.cell);
  const float* attended = attend(index, pass, q);
  if (config.attn_gate != Gate::None) {
    const float* logits = project(pass, path + "attn_gate", xn, w.attn_gate, nullptr, 0);
    float* gated = pass.space.floats(path + "attn_gated", rows * config.query_width());
    const bool per_value = w.attn_gate.view.rows != heads || config.head_dim == 1;
    gate(pass.stream, attended, logits, rows, heads, config.head_dim, per_value, config.attn_gate == Gate::Softplus, gated);
    emit(pass, path + "attn_gated", gated, {rows, heads, config.head_dim});
    attended = gated;
  }
  const float* o = project(pass, path + "o", attended, w.o, &w.o_bias, 0);
  float* middle = pass.space.floats(path + "h_attn", n);
  add(pass.stream, hidden, o, n, middle);
  emit(pass, path + "h_attn", middle, {rows, config.hidden});
  const float* xn_mlp = normalise(pass, path + "xn_mlp", middle, w.post_norm, 0);
  const float* g = project(pass, path + "mlp_gate", xn_mlp, w.gate, nullptr, 0);
  const float* up = project(pass, path + "mlp_up", xn_mlp, w.up, nullptr, 0);
  float* act = pass.space.floats(path + "mlp_act", rows * config.intermediate);
  swiglu(pass.stream, g, up, rows * config.intermediate, false, act);
  emit(pass, path + "mlp_act", act, {rows, config.intermediate});
  const float* down = project(pass, path + "mlp_down", act, w.down, nullptr, 0);
  hidden = pass.space.floats(path + "h_mlp", n);
  add(pass.stream, middle, down, n, hidden);
  emit(pass, path + "h_mlp", hidden, {rows, config.hidden});
}

void Drafter::propose(const int32_t* block_ids, int64_t rows, int64_t pos, int32_t* ids, float* top2, Rows logits) {
  reserve(held() + rows);
  appended_.hold(blocks_);
  Pass pass{blocks_, block_space_, rows, 0, pos, held(), nullptr, {}};
  ids_.grow(rows);
  int32_t* staged = ids_stage_.fill(rows);
  std::copy(block_ids, block_ids + rows, staged);
  upload(blocks_, ids_.get(), staged, rows * 4);
  ids_stage_.issued(blocks_);
  pass.table = block_space_.floats("table", rows * config.rope_dim);
  upload_table(block_table_stage_, pass);
  upload_masks(pass);
  float* hidden = block_space_.floats("draft.embed", rows * config.hidden);
  gather(blocks_, embedding_.view, ids_.get(), rows, static_cast<float>(config.embed_scale), hidden);
  emit(pass, "draft.embed", hidden, {rows, config.hidden});
  for (int64_t l = 0; l < config.layers; ++l) layer(l, pass, hidden);
  const float* final_norm = normalise(pass, "draft.final_norm", hidden, norm_, 0);
  const int64_t vocab = head_.view.rows;
  float* raw = block_space_.floats("raw", rows * vocab);
  float* scores = block_space_.floats("draft.logits", rows * vocab);
  linear(blocks_, final_norm, rows, head_.view, nullptr, raw);
  softcap(blocks_, raw, rows * vocab, static_cast<float>(config.output_multiplier), static_cast<float>(config.softcap), scores);
  emit(pass, "draft.logits", scores, {rows, vocab});
  choose(pass, scores);
  if (logits.data) {
    logits_out_.grow(rows * vocab);
    download(blocks_, logits_out_.get(), scores, rows * vocab * 4);
  }
  evict();
  proposed_.record(blocks_);
  blocks_.wait();
  finish(rows, ids, top2, logits);
}

void Drafter::choose(Pass& pass, const float* logits) {
  const int64_t rows = pass.rows;
  best_ids_.grow(2 * rows);
  best_.grow(2 * rows);
  ids_out_.grow(2 * rows);
  best_out_.grow(2 * rows);
  top2(pass.stream, logits, rows, head_.view.rows, best_ids_.get(), best_.get());
  download(pass.stream, ids_out_.get(), best_ids_.get(), rows * 8);
  download(pass.stream, best_out_.get(), best_.get(), rows * 8);
  if (!wants_dump(gpu, "draft.pick")) return;
  backend::wait(pass.stream, Site());
  std::vector<int32_t> picks;
  for (int64_t r = 0; r < rows; ++r) picks.push_back(ids_out_.get()[2 * r]);
  dump_dense(gpu, "draft.pick", picks.data(), 0, {rows}, DLAB_I32);
}

// Everything has run: results go to the caller, and the picks become drafts.
void Drafter::finish(int64_t rows, int32_t* ids, float* top2, Rows logits) {
  for (int64_t r = 0; r < rows; ++r) ids[r] = ids_out_.get()[2 * r];
  if (top2) std::copy(best_out_.get(), best_out_.get() + 2 * rows, top2);
  for (int64_t r = 0; logits.data && r < rows; ++r)
    memcpy(logits.row(r), logits_out_.get() + r * logits.width, static_cast<size_t>(logits.width) * 4);
  drafts.clear();
  for (int64_t r = config.predict_next ? 0 : 1; r < rows; ++r) {
    const auto count = static_cast<int32_t>(target_ids_.size());
    drafts.push_back(!count ? ids[r] : ids[r] >= 0 && ids[r] < count ? static_cast<int32_t>(target_ids_[static_cast<size_t>(ids[r])]) : -1);
  }
  proposed = true;
}

// SINK_RING: of more than sink + window committed rows, the first sink and the last window stay.
void Drafter::evict() {
  if (!config.evicts() || length_ <= config.sink + config.window) return;
  const auto first = std::lower_bound(positions.begin(), positions.end(), config.sink);
  const auto last = std::lower_bound(first, positions.end(), length_ - config.window);
  move_cells(blocks_, last - positions.begin(), first - positions.begin(), positions.end() - last);
  positions.erase(first, last);
  dropped_ = length_ - config.window;
}

void Drafter::read_cells(int64_t layer, std::vector<float>& k, std::vector<float>& v) {
  const int64_t count = held() * config.cell_width();
  const Pool& pool = pools_[static_cast<size_t>(layer)];
  appended_.hold(blocks_);
  Buffer<float> wide(count);
  for (auto [to, from] : {std::pair{&k, &pool.k}, {&v, &pool.v}}) {
    to->resize(static_cast<size_t>(count));
    if (!count) continue;
    convert(blocks_, from->get(), gpu.cell_dtype, count, wide.get(), DLAB_F32);
    download(blocks_, to->data(), wide.get(), count * 4);
    blocks_.wait();
  }
}

bool wants_dump(const dlab_ctx& ctx, const std::string& stage) {
  const auto matches = [&](const std::string& pattern) { return fnmatch(pattern.c_str(), stage.c_str(), 0) == 0; };
  return ctx.dump && std::any_of(ctx.dump_patterns.begin(), ctx.dump_patterns.end(), matches);
}

void dump_dense(const dlab_ctx& ctx, const std::string& stage, const void* host, int64_t row0, const std::vector<int64_t>& shape,
                int32_t dtype) {
  dlab_dump dump{};
  dump.struct_size = sizeof dump;
  dump.stage = stage.c_str();
  dump.row0 = row0;
  dump.tensor.data = const_cast<void*>(host);
  dump.tensor.dtype = dtype;
  dump.tensor.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = dtype == DLAB_F16 ? 2 : 4;
  for (size_t i = shape.size(); i-- > 0;) {
    dump.tensor.shape[i] = shape[i];
    dump.tensor.stride_bytes[i] = stride;
    stride *= shape[i];
  }
  if (ctx.dump(ctx.dump_user, &dump)) fail(DLAB_E_STATE, "the dump callback stopped at %s", stage.c_str());
}

}  // namespace dlab::gpu
