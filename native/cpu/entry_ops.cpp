// Entry points of the operations: validate, then call `ops`.
#include <cmath>

#include "checks.hpp"
#include "formats.hpp"
#include "ops.hpp"

using namespace dlab;

namespace {

Rows output(const dlab_tensor* y, const char* name, const dlab_tensor* like) {
  const Rows rows = f32_rows(y, name, like->ndim);
  for (int i = 0; i < like->ndim; ++i)
    if (y->shape[i] != like->shape[i])
      fail(DLAB_E_SHAPE, "%s is %s, expected the shape of %s", name, describe(*y).c_str(), describe(*like).c_str());
  return rows;
}

void require_same(const dlab_tensor* a, const dlab_tensor* b, const char* a_name, const char* b_name) {
  bool same = a->ndim == b->ndim;
  for (int i = 0; same && i < a->ndim; ++i) same = a->shape[i] == b->shape[i];
  if (!same) fail(DLAB_E_SHAPE, "%s is %s but %s is %s", a_name, describe(*a).c_str(), b_name, describe(*b).c_str());
}

ops::Cells cells(const dlab_tensor* t, const char* name) {
  require_tensor(t, name, 3, {DLAB_F32, DLAB_F16, DLAB_BF16});
  const int64_t bytes = weight_format(t->dtype)->bytes;
  const int64_t dense = t->shape[1] * t->shape[2] * bytes;
  const auto* data = static_cast<const uint8_t*>(t->data);
  return {data, t->dtype, t->shape[0], t->shape[1], t->shape[2], t->shape[0] > 1 ? t->stride_bytes[0] : dense};
}

// Values of a 16- or 32-bit float; all dimensions but the first are flattened.
ops::Values stored_rows(const dlab_tensor& t) {
  const int64_t rows = t.ndim == 1 ? 1 : t.shape[0];
  int64_t width = t.ndim == 1 ? t.shape[0] : 1;
  for (int i = 1; i < t.ndim; ++i) width *= t.shape[i];
  const int64_t dense = width * weight_format(t.dtype)->bytes;
  return {static_cast<uint8_t*>(t.data), t.dtype, rows, width, rows > 1 ? t.stride_bytes[0] : dense};
}

}  // namespace

extern "C" {

int32_t dlab_dequant(dlab_ctx* ctx, const dlab_tensor* w, dlab_tensor* y) {
  return guarded(ctx, "dequant", [&] {
    const Weight weight = stored_weight(w, "w", 2);
    const Rows out = output(y, "y", w);
    require_distinct(y, w, "y", "w");
    ops::dequant(*ctx, weight, out);
  });
}

int32_t dlab_convert(dlab_ctx* ctx, const dlab_tensor* x, dlab_tensor* y) {
  return guarded(ctx, "convert", [&] {
    require_tensor(x, "x", 0, {DLAB_F32, DLAB_F16, DLAB_BF16});
    require_tensor(y, "y", 0, {DLAB_F32, DLAB_F16, DLAB_BF16});
    require_same(x, y, "x", "y");
    require_distinct(y, x, "y", "x");
    ops::convert(*ctx, stored_rows(*x), stored_rows(*y));
  });
}

int32_t dlab_rms_norm(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, double eps, double weight_offset, int32_t n_groups,
                      dlab_tensor* y) {
  return guarded(ctx, "rms_norm", [&] {
    const Rows in = f32_rows(x, "x", 2), out = output(y, "y", x);
    require_distinct(y, x, "y", "x");
    if (n_groups < 1 || in.width % n_groups)
      fail(DLAB_E_ARG, "n_groups is %d, expected a divisor of the %lld values of a row", n_groups, ll(in.width));
    if (!(eps >= 0) || !std::isfinite(eps)) fail(DLAB_E_ARG, "eps is %g, expected a finite number of at least 0", eps);
    require_finite(weight_offset, "weight_offset");
    const bool shared = w && w->ndim == 1 && w->shape[0] == in.width / n_groups;
    const std::vector<float> weight = weight_vector(*ctx, w, "w", shared ? in.width / n_groups : in.width);
    ops::rms_norm(*ctx, in, w ? weight.data() : nullptr, static_cast<int64_t>(weight.size()), eps, weight_offset, n_groups, out);
  });
}

int32_t dlab_linear(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, const dlab_tensor* bias, dlab_tensor* y) {
  return guarded(ctx, "linear", [&] {
    const Rows in = f32_rows(x, "x", 2), out = f32_rows(y, "y", 2);
    const Weight weight = stored_weight(w, "w", 2);
    if (weight.width != in.width)
      fail(DLAB_E_SHAPE, "w is %s, expected rows of the %lld values of x", describe(*w).c_str(), ll(in.width));
    require_shape(y, "y", {in.rows, weight.rows});
    const std::vector<float> offset = weight_vector(*ctx, bias, "bias", weight.rows);
    require_distinct(y, x, "y", "x");
    require_distinct(y, w, "y", "w");
    ops::linear(*ctx, in, weight, bias ? offset.data() : nullptr, out);
  });
}

int32_t dlab_rope(dlab_ctx* ctx, const dlab_tensor* x, const int64_t* pos, const double* inv_freq, int32_t rot, int32_t style,
                  double mscale, dlab_tensor* y) {
  return guarded(ctx, "rope", [&] {
    const Rows in = f32_rows(x, "x", 3), out = output(y, "y", x);
    if (y->data != x->data) require_distinct(y, x, "y", "x");
    else if (out.stride != in.stride) fail(DLAB_E_ARG, "y is in the place of x but has other strides");
    if (rot < 2 || rot % 2 || rot > x->shape[2])
      fail(DLAB_E_SHAPE, "rot is %d, expected an even number in 2..%lld (the head width)", rot, ll(x->shape[2]));
    if (style != DLAB_ROPE_NEOX && style != DLAB_ROPE_INTERLEAVED) fail(DLAB_E_ARG, "style %d is unknown (1 neox, 2 interleaved)", style);
    require_finite(mscale, "mscale");
    require_pointer(inv_freq, "inv_freq");
    for (int32_t i = 0; i < rot / 2; ++i)
      if (!std::isfinite(inv_freq[i])) fail(DLAB_E_ARG, "inv_freq[%d] is %g, expected a finite number", i, inv_freq[i]);
    if (in.rows) require_pointer(pos, "pos");
    for (int64_t r = 0; r < in.rows; ++r)
      if (pos[r] < -kMaxPosition || pos[r] > kMaxPosition)
        fail(DLAB_E_ARG, "pos[%lld] is %lld, expected -2^31..2^31", ll(r), ll(pos[r]));
    if (!x->shape[1]) return;
    const std::vector<float> table = ops::rope_table(pos, in.rows, inv_freq, rot / 2, mscale);
    ops::rope(*ctx, in, table, x->shape[1], rot, style == DLAB_ROPE_INTERLEAVED, out);
  });
}

int32_t dlab_attention(dlab_ctx* ctx, const dlab_tensor* q, const dlab_tensor* k, const dlab_tensor* v, const uint8_t* visible,
                       double scale, const dlab_tensor* sinks, dlab_tensor* out) {
  return guarded(ctx, "attention", [&] {
    const Rows queries = f32_rows(q, "q", 3), result = output(out, "out", q);
    const ops::Cells keys = cells(k, "k"), values = cells(v, "v");
    const int64_t heads = q->shape[1];
    require_shape(k, "k", {-1, -1, q->shape[2]});
    require_shape(v, "v", {keys.cells, keys.kv_heads, keys.dim});
    if (keys.kv_heads < 1 || heads < 1 || heads % keys.kv_heads)
      fail(DLAB_E_SHAPE, "q has %lld heads and k %lld, expected a multiple", ll(heads), ll(keys.kv_heads));
    require_finite(scale, "scale");
    const std::vector<float> logits = weight_vector(*ctx, sinks, "sinks", heads);
    require_distinct(out, q, "out", "q");
    require_distinct(out, k, "out", "k");
    require_distinct(out, v, "out", "v");
    ops::attention(*ctx, queries, heads, keys, values, visible, scale, sinks ? logits.data() : nullptr, result);
  });
}

int32_t dlab_gate(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* g, int32_t kind, dlab_tensor* y) {
  return guarded(ctx, "gate", [&] {
    const Rows in = f32_rows(x, "x", 3), logits = f32_rows(g, "g", 2), out = output(y, "y", x);
    if (logits.rows != in.rows || (logits.width != x->shape[1] && logits.width != in.width))
      fail(DLAB_E_SHAPE, "g is %s, expected [%lld,%lld] (per head) or [%lld,%lld] (per value)", describe(*g).c_str(),
           ll(in.rows), ll(x->shape[1]), ll(in.rows), ll(in.width));
    if (kind != DLAB_GATE_SIGMOID && kind != DLAB_GATE_SOFTPLUS) fail(DLAB_E_ARG, "kind %d is unknown (1 sigmoid, 2 softplus)", kind);
    require_distinct(y, x, "y", "x");
    require_distinct(y, g, "y", "g");
    if (x->shape[1]) ops::gate(*ctx, in, logits, x->shape[1], kind == DLAB_GATE_SOFTPLUS, out);
  });
}

int32_t dlab_swiglu(dlab_ctx* ctx, const dlab_tensor* gate, const dlab_tensor* up, int32_t act, dlab_tensor* y) {
  return guarded(ctx, "swiglu", [&] {
    const Rows g = f32_rows(gate, "gate", 2), u = f32_rows(up, "up", 2), out = output(y, "y", gate);
    require_same(gate, up, "gate", "up");
    if (act != DLAB_ACT_SILU && act != DLAB_ACT_GELU_TANH) fail(DLAB_E_ARG, "act %d is unknown (0 silu, 1 gelu-tanh)", act);
    require_distinct(y, gate, "y", "gate");
    require_distinct(y, up, "y", "up");
    ops::swiglu(*ctx, g, u, act == DLAB_ACT_GELU_TANH, out);
  });
}

int32_t dlab_add(dlab_ctx* ctx, const dlab_tensor* a, const dlab_tensor* b, dlab_tensor* y) {
  return guarded(ctx, "add", [&] {
    const Rows first = f32_rows(a, "a", 2), second = f32_rows(b, "b", 2), out = output(y, "y", a);
    require_same(a, b, "a", "b");
    if (y->data != a->data) require_distinct(y, a, "y", "a");
    else if (out.stride != first.stride) fail(DLAB_E_ARG, "y is in the place of a but has other strides");
    require_distinct(y, b, "y", "b");
    ops::add(*ctx, first, second, out);
  });
}

int32_t dlab_gather(dlab_ctx* ctx, const dlab_tensor* table, const int32_t* ids, int32_t rows, double scale, dlab_tensor* y) {
  return guarded(ctx, "gather", [&] {
    const Weight weight = stored_weight(table, "table", 2);
    if (rows < 0) fail(DLAB_E_ARG, "rows is %d", rows);
    const Rows out = f32_rows(y, "y", 2);
    require_shape(y, "y", {rows, weight.width});
    require_ids(ids, rows, weight.rows, "ids");
    require_finite(scale, "scale");
    require_distinct(y, table, "y", "table");
    ops::gather(*ctx, weight, ids, scale, out);
  });
}

int32_t dlab_concat(dlab_ctx* ctx, const dlab_tensor* parts, int32_t n_parts, dlab_tensor* y) {
  return guarded(ctx, "concat", [&] {
    require_pointer(parts, "parts");
    if (n_parts < 1) fail(DLAB_E_ARG, "n_parts is %d, expected at least 1", n_parts);
    const Rows out = f32_rows(y, "y", 2);
    std::vector<Rows> sources;
    int64_t width = 0;
    for (int32_t i = 0; i < n_parts; ++i) {
      const std::string name = "parts[" + std::to_string(i) + "]";
      sources.push_back(f32_rows(&parts[i], name.c_str(), 2));
      require_shape(&parts[i], name.c_str(), {out.rows, -1});
      require_distinct(y, &parts[i], "y", name.c_str());
      width += sources.back().width;
    }
    require_shape(y, "y", {out.rows, width});
    ops::concat(*ctx, sources, out);
  });
}

int32_t dlab_top2(dlab_ctx* ctx, const dlab_tensor* x, int32_t* ids, float* values) {
  return guarded(ctx, "top2", [&] {
    const Rows in = f32_rows(x, "x", 2);
    if (in.width > INT32_MAX) fail(DLAB_E_SHAPE, "x has rows of %lld values, expected at most 2^31-1", ll(in.width));
    if (in.rows) require_pointer(ids, "ids");
    if (in.rows) require_pointer(values, "values");
    ops::top2(*ctx, in, ids, values);
  });
}

int32_t dlab_softmax(dlab_ctx* ctx, const dlab_tensor* x, double scale, dlab_tensor* y) {
  return guarded(ctx, "softmax", [&] {
    const Rows in = f32_rows(x, "x", 2), out = output(y, "y", x);
    require_finite(scale, "scale");
    require_distinct(y, x, "y", "x");
    ops::softmax(*ctx, in, scale, out);
  });
}

int32_t dlab_softcap(dlab_ctx* ctx, const dlab_tensor* x, double scale, double cap, dlab_tensor* y) {
  return guarded(ctx, "softcap", [&] {
    const Rows in = f32_rows(x, "x", 2), out = output(y, "y", x);
    require_finite(scale, "scale");
    require_finite(cap, "cap");
    require_distinct(y, x, "y", "x");
    ops::softcap(*ctx, in, scale, cap, out);
  });
}

int32_t dlab_accept(dlab_ctx* ctx, const int32_t* drafts, int32_t n, const int32_t* argmax, int32_t* accepted, int32_t* bonus) {
  return guarded(ctx, "accept", [&] {
    if (n < 0) fail(DLAB_E_ARG, "n is %d", n);
    if (n) require_pointer(drafts, "drafts");
    require_pointer(argmax, "argmax");
    require_pointer(accepted, "accepted");
    require_pointer(bonus, "bonus");
    require_ids(drafts, n, INT32_MAX, "drafts");  // so that the -1 of an all-NaN row accepts nothing
    *accepted = ops::accepted(drafts, n, argmax);
    *bonus = argmax[*accepted];
  });
}

}  // extern "C"
