// Operations whose rows follow from the rows before them: convolutions and the delta rule.
#include "apply.hpp"
#include "ops.hpp"

namespace dlab {

namespace {

constexpr int64_t kMaxTaps = 4096;

void short_conv(const Call& call) {
  const Rows x = call.floats("x"), history = call.floats("history");
  if (call.tensor("x")->ndim < 2) fail(DLAB_E_SHAPE, "x is %s, expected at least 2 dimensions", describe(*call.tensor("x")).c_str());
  const Weight w = call.weight("w", {x.width, -1});
  const int64_t taps = w.width, dilation = call.whole("dilation", 1, kMaxTaps);
  if (taps < 1 || taps > kMaxTaps) fail(DLAB_E_SHAPE, "w has %lld taps, expected 1..%lld", ll(taps), ll(kMaxTaps));
  const int64_t reach = (taps - 1) * dilation;
  if (call.tensor("history")->ndim < 2 || history.rows != reach || (reach && history.width != x.width))
    fail(DLAB_E_SHAPE, "history is %s, expected %lld rows of %lld values", describe(*call.tensor("history")).c_str(), ll(reach), ll(x.width));
  const std::vector<float> weights = call.values("w", {x.width, taps});
  ops::short_conv(call.ctx, x, history, weights.data(), taps, dilation, call.result_like("x"));
}

void dynamic_conv(const Call& call) {
  const Rows x = call.floats("x", {-1, -1}), kernel = call.floats("kernel", {x.rows, 2, -1, -1});
  const int64_t taps = call.axis("kernel", 2), groups = call.axis("kernel", 3), side = call.whole("side", 0, 1);
  if (taps < 1 || taps > kMaxTaps) fail(DLAB_E_SHAPE, "kernel has %lld taps, expected 1..%lld", ll(taps), ll(kMaxTaps));
  if (groups < 1 || x.width % groups) fail(DLAB_E_SHAPE, "kernel has %lld groups, expected a divisor of %lld", ll(groups), ll(x.width));
  const std::vector<float> base = call.values("base", {2 * taps, x.width});
  ops::dynamic_conv(call.ctx, x, kernel, base.data(), taps, groups, side, call.result_like("x"));
}

void delta_state(const Call& call) {
  const Rows start = call.floats("start", {-1, -1, -1});
  const int64_t heads = call.axis("start", 0), depth = call.axis("start", 1), n = call.axis("start", 2);
  const Rows k = call.floats("k", {-1, -1, depth});
  const int64_t rows = k.rows, key_heads = call.axis("k", 1);
  const Rows v = call.floats("v", {rows, heads, n}), decay = call.floats("decay", {rows, heads}), beta = call.floats("beta", {rows, heads});
  if (key_heads < 1 || heads % key_heads) fail(DLAB_E_SHAPE, "start has %lld heads and k %lld, expected a multiple", ll(heads), ll(key_heads));
  ops::delta_state(call.ctx, {rows, heads, key_heads, depth, n}, start, k, v, decay, beta, call.result({rows, heads, depth, n}));
}

void delta_read(const Call& call) {
  const Rows state = call.floats("state", {-1, -1, -1, -1});
  const int64_t rows = state.rows, heads = call.axis("state", 1), depth = call.axis("state", 2), n = call.axis("state", 3);
  const Rows q = call.floats("q", {rows, -1, depth});
  const int64_t key_heads = call.axis("q", 1);
  if (key_heads < 1 || heads % key_heads) fail(DLAB_E_SHAPE, "state has %lld heads and q %lld, expected a multiple", ll(heads), ll(key_heads));
  ops::delta_read(call.ctx, {rows, heads, key_heads, depth, n}, state, q, call.result({rows, heads, n}));
}

void block_mean(const Call& call) {
  const Rows x = call.floats("x", {-1, -1, -1});
  const int64_t ratio = call.whole("ratio", 1, INT32_MAX), blocks = x.rows / ratio;
  ops::block_mean(call.ctx, x, ratio, call.result({blocks, call.axis("x", 1), call.axis("x", 2)}));
}

}  // namespace

const Operation kSequences[] = {
    {"short_conv", "x,history,w", "dilation", short_conv},
    {"dynamic_conv", "x,kernel,base", "side", dynamic_conv},
    {"delta_state", "start,k,v,decay,beta", "", delta_state},
    {"delta_read", "state,q", "", delta_read},
    {"block_mean", "x", "ratio", block_mean},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace dlab
