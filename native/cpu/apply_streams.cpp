// Element-wise operations and those on several streams side by side.
#include "apply.hpp"
#include "ops.hpp"

namespace dlab {

namespace {

constexpr int64_t kMaxStreams = 4096;

int64_t stream_width(const Call& call, Rows x, int64_t streams) {
  if (x.width % streams) fail(DLAB_E_SHAPE, "x is %s, expected a multiple of %lld streams", describe(*call.tensor("x")).c_str(), ll(streams));
  return x.width / streams;
}

void sigmoid(const Call& call) { ops::squash(call.ctx, call.floats("x"), 1.0, 1.0, call.result_like("x")); }

void silu(const Call& call) {
  ops::silu(call.ctx, call.floats("x"), call.number("scale"), call.result_like("x"));
}

void squash(const Call& call) {
  ops::squash(call.ctx, call.floats("x"), call.number("scale"), call.number("gain"), call.result_like("x"));
}

void decay(const Call& call) {
  const Rows a = call.floats("a", {-1, -1}), y = call.result_like("a");
  const std::vector<float> a_log = call.values("a_log", {a.width}), dt_bias = call.values("dt_bias", {a.width});
  ops::decay(call.ctx, a, a_log.data(), dt_bias.data(), y);
}

void l2_norm(const Call& call) {
  const Rows x = call.floats("x"), y = call.result_like("x");
  const double eps = call.number("eps");
  if (eps < 0) fail(DLAB_E_ARG, "eps is %g, expected at least 0", eps);
  const int64_t n = call.axis("x", call.tensor("x")->ndim - 1);
  if (n) ops::l2_norm(call.ctx, x, n, eps, call.number("scale"), y);
}

void hc_read(const Call& call) {
  const Rows x = call.floats("x", {-1, -1}), g = call.floats("g", {x.rows, x.width});
  const int64_t streams = call.whole("streams", 1, kMaxStreams), n = stream_width(call, x, streams);
  ops::hc_read(call.ctx, x, g, streams, call.result({x.rows, n}));
}

void hc_write(const Call& call) {
  const Rows x = call.floats("x", {-1, -1}), inject = call.floats("inject", {x.rows, -1});
  if (!inject.width) fail(DLAB_E_SHAPE, "inject has no stream");
  const int64_t n = stream_width(call, x, inject.width);
  ops::hc_write(call.ctx, x, call.floats("v", {x.rows, n}), inject, call.result_like("x"));
}

void ple_gate(const Call& call) {
  const Rows key = call.floats("key", {-1, -1}), query = call.floats("query", {key.rows, key.width});
  const int64_t streams = call.whole("streams", 1, kMaxStreams);
  if (key.width % streams || !key.width)
    fail(DLAB_E_SHAPE, "key is %s, expected a multiple of %lld streams", describe(*call.tensor("key")).c_str(), ll(streams));
  ops::ple_gate(call.ctx, key, query, streams, call.result({key.rows, streams}));
}

void stream_gate(const Call& call) {
  const Rows x = call.floats("x", {-1, -1}), g = call.floats("g", {x.rows, -1});
  ops::stream_gate(call.ctx, x, g, call.result({x.rows, g.width * x.width}));
}

void markov_state(const Call& call) {
  const Rows state = call.floats("state", {-1, -1}), joint = call.floats("joint", {state.rows, 3, state.width});
  ops::markov_state(call.ctx, state, joint, call.result_like("state"));
}

void markov_output(const Call& call) {
  const Rows joint = call.floats("joint", {-1, 3, -1});
  ops::markov_output(call.ctx, joint, call.result({joint.rows, joint.width / 3}));
}

}  // namespace

const Operation kStreams[] = {
    {"sigmoid", "x", "", sigmoid},
    {"silu", "x", "scale", silu},
    {"squash", "x", "scale,gain", squash},
    {"decay", "a,a_log,dt_bias", "", decay},
    {"l2_norm", "x", "eps,scale", l2_norm},
    {"hc_read", "x,g", "streams", hc_read},
    {"hc_write", "x,v,inject", "", hc_write},
    {"ple_gate", "key,query", "streams", ple_gate},
    {"stream_gate", "x,g", "", stream_gate},
    {"markov_state", "state,joint", "", markov_state},
    {"markov_output", "joint", "", markov_output},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace dlab
