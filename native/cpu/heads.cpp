// What the heads of drafters add: DFlash 2's convolutions and selector, DSpark's Markov head, choices.
#include <algorithm>
#include <cmath>
#include <limits>

#include "formats.hpp"
#include "ops.hpp"

namespace dlab::ops {

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

void largest(const float* scores, const float* bias, int64_t n, int64_t k, int32_t* out) {
  const auto key = [&](int64_t i) {
    const float value = bias ? scores[i] + bias[i] : scores[i];
    return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
  };
  int64_t held = 0;
  for (int64_t i = 0; i < n && k > 0; ++i) {
    const float mine = key(i);
    if (held == k && !(mine > key(out[k - 1]))) continue;
    // Behind all that are at least as large: those have lower indices.
    int32_t* at = std::upper_bound(out, out + held, mine, [&](float value, int32_t other) { return value > key(other); });
    if (held < k) ++held;
    std::copy_backward(at, out + held - 1, out + held);
    *at = static_cast<int32_t>(i);
  }
}

int32_t choose(const float* scores, const int64_t* candidates, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i)
    if (!std::isnan(scores[i]) && (best < 0 || scores[i] > scores[best])) best = i;
  return best < 0 ? -1 : static_cast<int32_t>(candidates[best]);
}

void selector_scores(dlab_ctx& ctx, const float* logits, int64_t vocab, const int64_t* candidates, int64_t count, const float* hidden,
                     int64_t previous, const Weight& predecessor, const Weight& successor, float* scores) {
  const int64_t n = predecessor.width;
  const bool known = previous >= 0 && previous < predecessor.rows;
  std::vector<float> before(static_cast<size_t>(n)), after(static_cast<size_t>(n));
  if (known && n) {
    ctx.kernels.decode(predecessor.dtype, predecessor.row(previous), before.data(), n);
    ctx.kernels.product_of(before.data(), hidden, n, before.data());
  }
  for (int64_t c = 0; c < count; ++c) {
    const int64_t id = candidates[c];
    if (!known || id < 0 || id >= vocab || id >= successor.rows) {
      scores[c] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    if (n) ctx.kernels.decode(successor.dtype, successor.row(id), after.data(), n);
    scores[c] = logits[id] + ctx.kernels.dot(before.data(), after.data(), n);
  }
}

void to_target(const std::vector<int64_t>& ids, const std::vector<int64_t>& target_ids, int32_t* out) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool inside = ids[i] >= 0 && ids[i] < static_cast<int64_t>(target_ids.size());
    out[i] = inside ? static_cast<int32_t>(target_ids[static_cast<size_t>(ids[i])]) : -1;
  }
}

}  // namespace dlab::ops
