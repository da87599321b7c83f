// Entry points of the fused drafter: validate, then call Drafter.
#include <algorithm>
#include <cstring>

#include "checks.hpp"
#include "gpu/drafter.hpp"

using namespace dlab;
using dlab::gpu::Drafter;

namespace {

Drafter& of(dlab_drafter* d) { return *reinterpret_cast<Drafter*>(d); }

// The guard of a drafter's context; a NULL drafter has none.
template <class Body>
int32_t on_drafter(dlab_drafter* d, const char* op, Body&& body) noexcept {
  if (!d) return set_error(DLAB_E_ARG, "the drafter is NULL");
  return guarded(static_cast<dlab_ctx*>(&of(d).gpu), op, [&] { body(of(d)); });
}

// A cell tensor with room for the held rows.
Rows cell_rows(const Drafter& d, const dlab_tensor* t, const char* name, int64_t room) {
  require_tensor(t, name, 3, {DLAB_F32});
  const auto held = static_cast<int64_t>(d.positions.size());
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
    Config parsed = Config::parse(config);
    const DrafterWeights taken = DrafterWeights::take(*ctx, parsed, weights, n, true);  // copied to the device in any case
    *out = reinterpret_cast<dlab_drafter*>(new Drafter(gpu::context(*ctx), std::move(parsed), taken));
  });
}

int32_t dlab_drafter_describe(dlab_drafter* d, char* buf, size_t cap, size_t* need) {
  return on_drafter(d, "drafter_describe", [&](Drafter& drafter) {
    require_pointer(need, "need");
    const std::string text = drafter.config.text();
    if (buf && cap < text.size() + 1) fail(DLAB_E_ARG, "cap is %zu bytes, expected %zu", cap, text.size() + 1);
    *need = text.size() + 1;
    if (buf) memcpy(buf, text.c_str(), text.size() + 1);
  });
}

int32_t dlab_drafter_append(dlab_drafter* d, const dlab_tensor* taps, int64_t pos0) {
  return on_drafter(d, "drafter_append", [&](Drafter& drafter) {
    const Rows rows = f32_rows(taps, "taps", 2);
    require_shape(taps, "taps", {-1, drafter.config.feature_width()});
    if (pos0 < 0 || pos0 + rows.rows > kMaxPosition) fail(DLAB_E_ARG, "pos0 is %lld, expected 0..2^31", ll(pos0));
    drafter.append(rows, pos0);
  });
}

int32_t dlab_drafter_propose(dlab_drafter* d, const int32_t* block_ids, int32_t rows, int64_t pos, int32_t* ids, float* top2,
                             dlab_tensor* logits) {
  return on_drafter(d, "drafter_propose", [&](Drafter& drafter) {
    const Config& config = drafter.config;
    if (rows < 1 || rows > config.block_size) fail(DLAB_E_ARG, "rows is %d, expected 1..%lld (block_size)", rows, ll(config.block_size));
    if (pos < 0 || pos + rows > kMaxPosition) fail(DLAB_E_ARG, "pos is %lld, expected 0..2^31", ll(pos));
    require_ids(block_ids, rows, config.vocab, "block_ids");
    require_pointer(ids, "ids");
    Rows out;
    if (logits) {
      out = f32_rows(logits, "logits", 2);
      require_shape(logits, "logits", {rows, config.draft_vocab});
    }
    drafter.propose(block_ids, rows, pos, ids, top2, out);
  });
}

int32_t dlab_drafter_drafts(dlab_drafter* d, int32_t* drafts, float*, int32_t* n) {
  return on_drafter(d, "drafter_drafts", [&](Drafter& drafter) {
    require_pointer(n, "n");
    if (!drafter.proposed) fail(DLAB_E_STATE, "nothing was proposed yet");
    const auto count = static_cast<int32_t>(drafter.drafts.size());
    if (*n < count) fail(DLAB_E_SHAPE, "drafts has room for %d ids, expected %d", *n, count);
    if (count) require_pointer(drafts, "drafts");
    std::copy(drafter.drafts.begin(), drafter.drafts.end(), drafts);
    *n = count;
  });
}

int32_t dlab_drafter_truncate(dlab_drafter* d, int64_t length) {
  return on_drafter(d, "drafter_truncate", [&](Drafter& drafter) {
    if (length < 0) fail(DLAB_E_ARG, "length is %lld", ll(length));
    drafter.truncate(length);
  });
}

int32_t dlab_drafter_context(dlab_drafter* d, int32_t layer, dlab_tensor* k, dlab_tensor* v, int64_t* positions, int64_t* n) {
  return on_drafter(d, "drafter_context", [&](Drafter& drafter) {
    require_pointer(n, "n");
    if (layer < 0 || layer >= drafter.config.layers)
      fail(DLAB_E_ARG, "layer is %d, expected 0..%lld", layer, ll(drafter.config.layers - 1));
    const auto held = static_cast<int64_t>(drafter.positions.size()), width = drafter.config.cell_width();
    if (k || v || positions) {
      require_pointer(positions, "positions");
      const Rows keys = cell_rows(drafter, k, "k", *n), values = cell_rows(drafter, v, "v", *n);
      std::vector<float> held_k, held_v;
      drafter.read_cells(layer, held_k, held_v);
      for (int64_t r = 0; r < held; ++r) {
        memcpy(keys.row(r), held_k.data() + r * width, static_cast<size_t>(width) * 4);
        memcpy(values.row(r), held_v.data() + r * width, static_cast<size_t>(width) * 4);
      }
      if (held) memcpy(positions, drafter.positions.data(), static_cast<size_t>(held) * sizeof(int64_t));
    }
    *n = held;
  });
}

void dlab_drafter_destroy(dlab_drafter* d) {
  if (d) delete &of(d);
}

}  // extern "C"
