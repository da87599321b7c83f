// Choices and experts.
#include "heads.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "formats.hpp"

namespace dlab::ops {

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

void index_scores(dlab_ctx& ctx, Rows q, int64_t heads, Rows k, const int64_t* pos, int64_t ratio, double scale, Rows y) {
  const int64_t dim = k.width;
  const Weight keys{reinterpret_cast<const uint8_t*>(k.data), DLAB_F32, k.rows, dim, k.stride * 4};
  std::vector<float> products(static_cast<size_t>(heads * k.rows));
  for (int64_t r = 0; r < q.rows; ++r) {
    const Rows all{products.data(), heads, k.rows, k.rows};
    linear(ctx, {q.row(r), heads, dim, dim}, keys, nullptr, all);
    const int64_t seen = complete_blocks(pos[r], ratio, k.rows);
    for (int64_t b = 0; b < k.rows; ++b) {
      float sum = 0.0f;
      for (int64_t h = 0; h < heads; ++h) sum += all.row(h)[b] <= 0.0f ? 0.0f : all.row(h)[b];  // NaN stays
      y.row(r)[b] = b < seen ? sum * static_cast<float>(scale) : 0.0f;
    }
  }
}

void select_cells(dlab_ctx&, Rows scores, const int64_t* pos, int64_t ratio, int64_t budget, Ids y) {
  std::vector<int32_t> best(static_cast<size_t>(std::min(budget / ratio, scores.width)));
  for (int64_t r = 0; r < scores.rows; ++r) {
    int32_t* row = y.row(r);
    std::fill(row, row + y.width, 0);
    const int64_t open = complete_blocks(pos[r], ratio, scores.width);
    const int64_t taken = std::min(static_cast<int64_t>(best.size()), open);
    largest(scores.row(r), nullptr, open, taken, best.data());
    for (int64_t i = 0; i < taken; ++i) std::fill_n(row + best[static_cast<size_t>(i)] * ratio, ratio, 1);
    for (int64_t c = (pos[r] + 1) / ratio * ratio; c <= pos[r] && c < y.width; ++c) row[c] = 1;
  }
}

void select(dlab_ctx& ctx, Rows scores, const float* bias, Ids y) {
  each_row(ctx, scores.rows, [&](int64_t r) { largest(scores.row(r), bias, scores.width, y.width, y.row(r)); });
}

void choose(dlab_ctx&, Rows scores, const int64_t* candidates, int32_t* y) {
  for (int64_t r = 0; r < scores.rows; ++r) y[r] = choose(scores.row(r), candidates + r * scores.width, scores.width);
}

void selector_scores(dlab_ctx& ctx, Rows logits, const int64_t* candidates, Rows hidden, const int64_t* previous, const Weight& predecessor,
                     const Weight& successor, Rows y) {
  for (int64_t r = 0; r < logits.rows; ++r)
    selector_scores(ctx, logits.row(r), logits.width, candidates + r * y.width, y.width, hidden.row(r), previous[r], predecessor, successor,
                    y.row(r));
}

void expert_weights(dlab_ctx&, Rows scores, const int64_t* selected, bool normalise, double scale, Rows y) {
  for (int64_t r = 0; r < scores.rows; ++r) {
    float sum = 0.0f;
    for (int64_t j = 0; j < y.width; ++j) {
      y.row(r)[j] = scores.row(r)[selected[r * y.width + j]];
      sum += y.row(r)[j];
    }
    for (int64_t j = 0; j < y.width; ++j) y.row(r)[j] = (normalise ? y.row(r)[j] / sum : y.row(r)[j]) * static_cast<float>(scale);
  }
}

void expert_linear(dlab_ctx& ctx, Rows x, const int64_t* selected, int64_t ranks, const std::vector<Weight>& experts, Rows y) {
  const int64_t width = experts.front().width, outputs = experts.front().rows;
  const bool by_rank = x.width != width;
  std::map<int64_t, std::vector<int64_t>> places;  // of each selected expert: row * ranks + rank
  for (int64_t i = 0; i < x.rows * ranks; ++i) places[selected[i]].push_back(i);
  for (const auto& [expert, at] : places) {
    const auto rows = static_cast<int64_t>(at.size());
    std::vector<float> in(static_cast<size_t>(rows * width)), out(static_cast<size_t>(rows * outputs));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t place = at[static_cast<size_t>(i)];
      const float* from = x.row(place / ranks) + (by_rank ? place % ranks * width : 0);
      std::copy(from, from + width, in.begin() + i * width);
    }
    linear(ctx, {in.data(), rows, width, width}, experts[static_cast<size_t>(expert)], nullptr, {out.data(), rows, outputs, outputs});
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t place = at[static_cast<size_t>(i)];
      std::copy(out.begin() + i * outputs, out.begin() + (i + 1) * outputs, y.row(place / ranks) + place % ranks * outputs);
    }
  }
}

void expert_sum(dlab_ctx& ctx, Rows x, Rows weights, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) { ctx.kernels.weighted_sum(x.row(r), weights.row(r), weights.width, y.width, y.row(r)); });
}

}  // namespace dlab::ops
