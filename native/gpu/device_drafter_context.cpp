// Committed rows: appending them, the pools of cells they live in, and what a block sees of them.
#include <algorithm>
#include <cstring>

#include "gpu/device_drafter.hpp"

namespace dlab::gpu {

namespace {

constexpr int64_t kAppendRows = 256;  // rows that go through the device together

}  // namespace

void DeviceDrafter::append(Rows taps, int64_t pos0) {
  held.require(pos0);
  recorder_.forget();
  proposed_.hold(appends_);
  const int64_t behind = held.count();
  reserve(behind + taps.rows + config.block_size);
  for (int64_t r = 0; r < taps.rows; r += kAppendRows) {
    append_rows({taps.row(r), std::min(kAppendRows, taps.rows - r), taps.width, taps.stride}, pos0 + r, behind + r);
    if (recorder_.full()) recorder_.deliver(ctx);
  }
  recorder_.deliver(ctx);
  // All is issued: now the context changes.
  HeldRows after = held;
  after.append(pos0, taps.rows);
  move_cells(appends_, behind, held.before(pos0), taps.rows);
  appended_.record(appends_);
  held = std::move(after);
}

// Computes the cells of some rows and writes them from `cell` on, behind everything held.
void DeviceDrafter::append_rows(Rows taps, int64_t pos0, int64_t cell) {
  Pass pass{appends_, append_space_, taps.rows, pos0, pos0, cell};
  const int64_t rows = taps.rows, count = rows * taps.width;
  float* staged = taps_stage_.fill(count);
  for (int64_t r = 0; r < rows; ++r) memcpy(staged + r * taps.width, taps.row(r), static_cast<size_t>(taps.width) * 4);
  float* x = append_space_.floats("draft.taps", count);
  upload(appends_, x, staged, count * 4);
  taps_stage_.issued(appends_);
  upload_table(append_table_stage_, pass);
  emit(pass, "draft.taps", x, {rows, taps.width});
  if (config.tap_norm) {
    float* normed = append_space_.floats("draft.tap_norm", count);
    rms_norm(appends_, x, rows, taps.width, config.n_taps, weights_.tap_norm.get(), false, config.eps, 0.0, normed);
    emit(pass, "draft.tap_norm", normed, {rows, taps.width});
    x = normed;
  }
  const float* features = project(pass, "draft.fc", x, weights_.fc, nullptr, 0);
  const float* encoded = normalise(pass, "draft.ctx", features, weights_.hidden_norm, 0);
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const DeviceLayer& w = weights_.layers[l];
    const std::string path = "draft.L" + std::to_string(l) + ".ctx.";
    const float* input = config.ctx_layernorm ? normalise(pass, path + "xn", encoded, w.input_norm, 0) : encoded;
    const float* k = project(pass, path + "k_raw", input, w.k, &w.k_bias, config.kv_heads);
    const float* v = project(pass, path + "v", input, w.v, &w.v_bias, config.kv_heads);
    k = rotate(pass, path + "k_rope", normalise(pass, path + "k_norm", k, w.k_norm, config.kv_heads), config.kv_heads);
    store_cells(pass, k, pools_[l].k, cell);
    store_cells(pass, v, pools_[l].v, cell);
  }
}

// SINK_RING: the cells that stay close up.
void DeviceDrafter::evict() {
  const HeldRows::Leaving cells = held.leaving();
  move_cells(blocks_, cells.last, cells.first, cells.first == cells.last ? 0 : held.count() - cells.last);
  held.evict(cells);
}

// Room for so many cells in every pool; the held ones move along.
void DeviceDrafter::reserve(int64_t cells) {
  if (cells <= capacity_) return;
  const int64_t room = std::max(cells, capacity_ + capacity_ / 2), bytes = held.count() * cell_bytes();
  std::vector<Pool> grown;
  for (size_t l = 0; l < pools_.size(); ++l) {
    grown.push_back({Buffer<uint8_t>(room * cell_bytes()), Buffer<uint8_t>(room * cell_bytes())});
    move(appends_, grown[l].k.get(), pools_[l].k.get(), bytes);
    move(appends_, grown[l].v.get(), pools_[l].v.get(), bytes);
  }
  appends_.wait();
  pools_ = std::move(grown);
  capacity_ = room;
}

// By way of a buffer apart, since the two places may overlap.
void DeviceDrafter::move_cells(StreamHandle stream, int64_t from, int64_t to, int64_t count) {
  if (from == to || count == 0) return;
  const int64_t bytes = count * cell_bytes();
  moved_.grow(bytes);
  for (Pool& pool : pools_)
    for (Buffer<uint8_t>* cells : {&pool.k, &pool.v}) {
      move(stream, moved_.get(), cell_at(*cells, from), bytes);
      move(stream, cell_at(*cells, to), moved_.get(), bytes);
    }
}

void DeviceDrafter::store_cells(Pass& pass, const float* x, Buffer<uint8_t>& cells, int64_t cell) {
  convert(pass.stream, x, DLAB_F32, pass.rows * config.cell_width(), cell_at(cells, cell), device_.cell_dtype);
}

void DeviceDrafter::upload_table(Staging<float>& staging, Pass& pass) {
  std::vector<int64_t> at(static_cast<size_t>(pass.rows));
  for (int64_t r = 0; r < pass.rows; ++r) at[static_cast<size_t>(r)] = pass.pos + r;
  const std::vector<float> table = ops::rope_table(at.data(), pass.rows, inv_freq_.data(), config.rope_dim / 2, 1.0);
  const auto count = static_cast<int64_t>(table.size());
  float* staged = staging.fill(count);
  std::copy(table.begin(), table.end(), staged);
  float* to = pass.space.floats("table", count);
  upload(pass.stream, to, staged, count * 4);
  staging.issued(pass.stream);
  pass.table = to;
}

// One mask [rows][cells] for each combination of causal and sliding that a layer has.
void DeviceDrafter::upload_masks(Pass& pass) {
  const int64_t bytes = pass.rows * (held.count() + pass.rows);
  uint8_t* staged = mask_stage_.fill(4 * bytes);
  masks_.grow(4 * bytes);
  for (int64_t l = 0; l < config.layers; ++l) {
    const auto kind = static_cast<int64_t>(2 * config.causal[static_cast<size_t>(l)] + config.sliding[static_cast<size_t>(l)]);
    if (pass.masks[kind]) continue;
    held.visible(l, pass.pos, pass.rows, staged + kind * bytes);
    upload(pass.stream, masks_.get() + kind * bytes, staged + kind * bytes, bytes);
    pass.masks[kind] = masks_.get() + kind * bytes;
  }
  mask_stage_.issued(pass.stream);
}

void DeviceDrafter::read_cells(int64_t layer, Rows k, Rows v) {
  const int64_t rows = held.count(), width = config.cell_width();
  const Pool& pool = pools_[static_cast<size_t>(layer)];
  appended_.hold(blocks_);
  Buffer<float> wide(rows * width);
  for (auto [to, from] : {std::pair{k, &pool.k}, {v, &pool.v}}) {
    convert(blocks_, from->get(), device_.cell_dtype, rows * width, wide.get(), DLAB_F32);
    if (rows) backend::copy(blocks_, to.data, to.stride * 4, wide.get(), width * 4, width * 4, rows, Direction::Down, Site());
    blocks_.wait();
  }
}

}  // namespace dlab::gpu
