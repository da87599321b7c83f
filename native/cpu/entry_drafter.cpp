// Entry points of the fused drafter: validate, then call the backend's own.
#include <algorithm>
#include <cstring>

#include "checks.hpp"
#include "fused.hpp"
#include "ops.hpp"

using namespace dlab;

namespace {

// The guard of a drafter's context; a NULL drafter has none.
template <class Body>
int32_t on_drafter(dlab_drafter* d, const char* op, Body&& body) noexcept {
  if (!d) return set_error(DLAB_E_ARG, "the drafter is NULL");
  return guarded(&d->ctx, op, body);
}

// A cell tensor with room for the held rows.
Rows cell_rows(const dlab_drafter& d, const dlab_tensor* t, const char* name, int64_t room) {
  require_tensor(t, name, 3, {DLAB_F32});
  const int64_t held = d.held.count();
  if (room < held || t->shape[0] < held)
    fail(DLAB_E_SHAPE, "%s has room for %lld rows, expected %lld", name, ll(std::min(room, t->shape[0])), ll(held));
  require_shape(t, name, {-1, d.config.kv_heads, d.config.head_dim});
  return f32_rows(t, name, 3);
}

}  // namespace

extern "C" {

int32_t dlab_drafter_create(dlab_ctx* ctx, const char* config, const dlab_named_tensor* weights, int32_t n, uint32_t flags,
                            dlab_drafter** out) {
  return guarded(ctx, "drafter_create", [&] {
    require_pointer(out, "out");
    if (flags & ~static_cast<uint32_t>(DLAB_BORROW)) fail(DLAB_E_ARG, "flags 0x%x are unknown", flags);
    *out = make_drafter(*ctx, Config::parse(config), weights, n, flags & DLAB_BORROW).release();
  });
}

int32_t dlab_drafter_describe(dlab_drafter* d, char* buf, size_t cap, size_t* need) {
  return on_drafter(d, "drafter_describe", [&] {
    require_pointer(need, "need");
    const std::string text = d->config.text();
    if (buf && cap < text.size() + 1) fail(DLAB_E_ARG, "cap is %zu bytes, expected %zu", cap, text.size() + 1);
    *need = text.size() + 1;
    if (buf) memcpy(buf, text.c_str(), text.size() + 1);
  });
}

int32_t dlab_drafter_append(dlab_drafter* d, const dlab_tensor* taps, int64_t pos0) {
  return on_drafter(d, "drafter_append", [&] {
    const Rows rows = f32_rows(taps, "taps", 2);
    require_shape(taps, "taps", {-1, d->config.feature_width()});
    if (pos0 < 0 || pos0 + rows.rows > kMaxPosition) fail(DLAB_E_ARG, "pos0 is %lld, expected 0..2^31", ll(pos0));
    d->append(rows, pos0);
  });
}

int32_t dlab_drafter_propose(dlab_drafter* d, const int32_t* block_ids, int32_t rows, int64_t pos, int32_t* ids, float* top2,
                             dlab_tensor* logits) {
  return on_drafter(d, "drafter_propose", [&] {
    if (rows < 1 || rows > d->config.block_size)
      fail(DLAB_E_ARG, "rows is %d, expected 1..%lld (block_size)", rows, ll(d->config.block_size));
    if (pos < 0 || pos + rows > kMaxPosition) fail(DLAB_E_ARG, "pos is %lld, expected 0..2^31", ll(pos));
    require_ids(block_ids, rows, d->config.vocab, "block_ids");
    require_pointer(ids, "ids");
    Rows out;
    if (logits) {
      out = f32_rows(logits, "logits", 2);
      require_shape(logits, "logits", {rows, d->config.draft_vocab});
    }
    d->propose(block_ids, rows, pos, ids, top2, out);
  });
}

int32_t dlab_drafter_drafts(dlab_drafter* d, int32_t* drafts, float* confidence, int32_t* n) {
  return on_drafter(d, "drafter_drafts", [&] {
    require_pointer(n, "n");
    if (!d->proposed) fail(DLAB_E_STATE, "nothing was proposed yet");
    const auto count = static_cast<int32_t>(d->drafts.size());
    if (*n < count) fail(DLAB_E_SHAPE, "drafts has room for %d ids, expected %d", *n, count);
    if (count) require_pointer(drafts, "drafts");
    std::copy(d->drafts.begin(), d->drafts.end(), drafts);
    if (confidence) std::copy(d->confidence.begin(), d->confidence.end(), confidence);
    *n = count;
  });
}

int32_t dlab_drafter_verify(dlab_drafter* d, const int32_t* drafts, int32_t n, const dlab_tensor* logits, const dlab_tensor* taps,
                            int64_t pos, int32_t* picks, int32_t* accepted, int32_t* bonus) {
  return on_drafter(d, "drafter_verify", [&] {
    if (n < 0 || n >= INT32_MAX) fail(DLAB_E_ARG, "n is %d", n);
    if (n) require_pointer(drafts, "drafts");
    require_pointer(picks, "picks");
    require_pointer(accepted, "accepted");
    require_pointer(bonus, "bonus");
    require_ids(drafts, n, INT32_MAX, "drafts");  // so that the -1 of an all-NaN row accepts nothing
    const int64_t rows = int64_t{n} + 1;
    const Rows scores = f32_rows(logits, "logits", 2);
    require_shape(logits, "logits", {rows, d->config.vocab});
    Rows committed = f32_rows(taps, "taps", 2);
    require_shape(taps, "taps", {rows, d->config.feature_width()});
    if (pos < 0 || pos + rows > kMaxPosition) fail(DLAB_E_ARG, "pos is %lld, expected 0..2^31", ll(pos));
    std::vector<int32_t> best(static_cast<size_t>(2 * rows)), chosen(static_cast<size_t>(rows));
    std::vector<float> ahead(best.size());
    ops::top2(d->ctx, scores, best.data(), ahead.data());
    for (size_t r = 0; r < chosen.size(); ++r) chosen[r] = best[2 * r];
    const int32_t count = ops::accepted(drafts, n, chosen.data());
    committed.rows = int64_t{count} + 1;
    d->append(committed, pos);
    std::copy(chosen.begin(), chosen.end(), picks);
    *accepted = count;
    *bonus = chosen[static_cast<size_t>(count)];
  });
}

int32_t dlab_drafter_truncate(dlab_drafter* d, int64_t length) {
  return on_drafter(d, "drafter_truncate", [&] {
    if (length < 0) fail(DLAB_E_ARG, "length is %lld", ll(length));
    d->truncate(length);
  });
}

int32_t dlab_drafter_context(dlab_drafter* d, int32_t layer, dlab_tensor* k, dlab_tensor* v, int64_t* positions, int64_t* n) {
  return on_drafter(d, "drafter_context", [&] {
    require_pointer(n, "n");
    if (layer < 0 || layer >= d->config.layers)
      fail(DLAB_E_ARG, "layer is %d, expected 0..%lld", layer, ll(d->config.layers - 1));
    const int64_t held = d->held.count();
    if (k || v || positions) {
      require_pointer(positions, "positions");
      const Rows keys = cell_rows(*d, k, "k", *n), values = cell_rows(*d, v, "v", *n);
      d->read_cells(layer, keys, values);
      if (held) memcpy(positions, d->held.positions().data(), static_cast<size_t>(held) * sizeof(int64_t));
    }
    *n = held;
  });
}

void dlab_drafter_destroy(dlab_drafter* d) { delete d; }

}  // extern "C"
