// Operations by name on a row or a head at a time: element-wise, streams, sequences.
#include "apply.hpp"

namespace dlab {

std::vector<const Operation*> operation_tables() { return {kMoves, kTables, kStreams, kSequences, kChoices, kExperts}; }

namespace ops {

void silu(dlab_ctx& ctx, Rows x, double scale, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) { ctx.kernels.silu(x.row(r), static_cast<float>(scale), x.width, y.row(r)); });
}

void squash(dlab_ctx& ctx, Rows x, double scale, double gain, Rows y) {
  each_row(ctx, x.rows,
           [&](int64_t r) { ctx.kernels.squash(x.row(r), static_cast<float>(scale), static_cast<float>(gain), x.width, y.row(r)); });
}

void dynamic_conv(dlab_ctx& ctx, Rows x, Rows kernel, const float* base, int64_t taps, int64_t groups, int64_t side, Rows y) {
  std::vector<const float*> scratch(static_cast<size_t>(taps * ctx.pool.threads()));
  ctx.pool.run(x.rows, [&](int64_t t, int thread) {
    const float** rows = scratch.data() + taps * thread;
    for (int64_t j = 0; j < taps; ++j) rows[j] = j <= t ? x.row(t - j) : nullptr;
    ctx.kernels.dynamic_conv(rows, base + side * taps * x.width, kernel.row(t) + side * taps * groups, taps, groups, x.width, y.row(t));
  });
}

void markov_state(dlab_ctx& ctx, Rows state, Rows joint, Rows y) {
  each_row(ctx, state.rows, [&](int64_t r) { ctx.kernels.markov_state(state.row(r), joint.row(r), state.width, y.row(r)); });
}

void markov_output(dlab_ctx& ctx, Rows joint, Rows y) {
  each_row(ctx, joint.rows, [&](int64_t r) { ctx.kernels.hyperbolic(joint.row(r) + 2 * y.width, y.width, y.row(r)); });
}

void decay(dlab_ctx& ctx, Rows a, const float* a_log, const float* dt_bias, Rows y) {
  each_row(ctx, a.rows, [&](int64_t r) { ctx.kernels.decay(a.row(r), a_log, dt_bias, a.width, y.row(r)); });
}

void l2_norm(dlab_ctx& ctx, Rows x, int64_t n, double eps, double scale, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) {
    for (int64_t i = 0; i < x.width; i += n) ctx.kernels.l2_norm(x.row(r) + i, eps, static_cast<float>(scale), n, y.row(r) + i);
  });
}

void hc_read(dlab_ctx& ctx, Rows x, Rows g, int64_t streams, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) { ctx.kernels.hc_read(x.row(r), g.row(r), streams, y.width, y.row(r)); });
}

void hc_write(dlab_ctx& ctx, Rows x, Rows v, Rows inject, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) { ctx.kernels.hc_write(x.row(r), v.row(r), inject.row(r), inject.width, v.width, y.row(r)); });
}

void ple_gate(dlab_ctx& ctx, Rows key, Rows query, int64_t streams, Rows y) {
  const int64_t n = key.width / streams;
  each_row(ctx, key.rows, [&](int64_t r) {
    for (int64_t s = 0; s < streams; ++s) y.row(r)[s] = ctx.kernels.ple_gate(key.row(r) + s * n, query.row(r) + s * n, n);
  });
}

void stream_gate(dlab_ctx& ctx, Rows x, Rows g, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) {
    for (int64_t s = 0; s < g.width; ++s) ctx.kernels.gate(x.row(r), g.row(r) + s, true, false, x.width, y.row(r) + s * x.width);
  });
}

void short_conv(dlab_ctx& ctx, Rows x, Rows history, const float* w, int64_t taps, int64_t dilation, Rows y) {
  const int64_t reach = (taps - 1) * dilation;
  std::vector<const float*> scratch(static_cast<size_t>(taps * ctx.pool.threads()));
  ctx.pool.run(x.rows, [&](int64_t t, int thread) {
    const float** rows = scratch.data() + taps * thread;
    for (int64_t k = 0; k < taps; ++k) {
      const int64_t at = t - dilation * (taps - 1 - k);
      rows[k] = at < 0 ? history.row(reach + at) : x.row(at);
    }
    ctx.kernels.short_conv(rows, w, taps, x.width, y.row(t));
  });
}

void delta_state(dlab_ctx& ctx, const DeltaSizes& sizes, Rows start, Rows k, Rows v, Rows decay, Rows beta, Rows y) {
  const int64_t depth = sizes.depth, n = sizes.n, size = depth * n;
  std::vector<float> scratch(static_cast<size_t>(2 * n * ctx.pool.threads()));
  ctx.pool.run(sizes.rows ? sizes.heads : 0, [&](int64_t h, int thread) {
    const int64_t key = h / (sizes.heads / sizes.key_heads) * depth;
    const float* before = start.row(h);
    for (int64_t r = 0; r < sizes.rows; ++r) {
      float* after = y.row(r) + h * size;
      ctx.kernels.delta_step(before, k.row(r) + key, v.row(r) + h * n, decay.row(r)[h], beta.row(r)[h], depth, n,
                             scratch.data() + 2 * n * thread, after);
      before = after;
    }
  });
}

void delta_read(dlab_ctx& ctx, const DeltaSizes& sizes, Rows state, Rows q, Rows y) {
  const int64_t heads = sizes.heads, depth = sizes.depth, n = sizes.n;
  std::vector<float> scratch(static_cast<size_t>(n * ctx.pool.threads()));
  ctx.pool.run(sizes.rows * heads, [&](int64_t item, int thread) {
    const int64_t r = item / heads, h = item % heads;
    ctx.kernels.delta_read(state.row(r) + h * depth * n, q.row(r) + h / (heads / sizes.key_heads) * depth, depth, n,
                           scratch.data() + n * thread, y.row(r) + h * n);
  });
}

void block_mean(dlab_ctx& ctx, Rows x, int64_t ratio, Rows y) {
  each_row(ctx, y.rows, [&](int64_t b) { ctx.kernels.mean(x.row(b * ratio), x.stride, ratio, x.width, y.row(b)); });
}

void ngram(dlab_ctx& ctx, const std::vector<Weight>& table, const std::vector<int64_t>& chosen, int64_t heads, Rows y) {
  const int64_t width = y.width / heads;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto [shard, row] = row_in(table, chosen[i]);
    const auto at = static_cast<int64_t>(i);
    ctx.kernels.decode(shard->dtype, shard->row(row), y.row(at / heads) + at % heads * width, width);
  }
}

}  // namespace ops
}  // namespace dlab
