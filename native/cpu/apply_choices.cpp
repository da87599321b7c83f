// Scores of what can be chosen, and the choices: ties go to the lowest index, NaN comes last.
#include <algorithm>
#include <cmath>

#include "apply.hpp"
#include "ops.hpp"

namespace dlab {

namespace {

// Complete blocks of a row at this position, of `blocks`.
int64_t complete(int64_t pos, int64_t ratio, int64_t blocks) { return std::min(blocks, (pos + 1) / ratio); }

std::vector<int64_t> positions(const Call& call, int64_t rows) {
  std::vector<int64_t> pos = call.wide("pos", rows);
  for (size_t r = 0; r < pos.size(); ++r)
    if (pos[r] < 0 || pos[r] > kMaxPosition) fail(DLAB_E_ARG, "pos[%zu] is %lld, expected 0..2^31", r, ll(pos[r]));
  return pos;
}

void index_scores(const Call& call) {
  const Rows q = call.floats("q", {-1, -1, -1});
  const int64_t heads = call.axis("q", 1), dim = call.axis("q", 2);
  const Rows k = call.floats("k", {-1, 1, dim});
  const std::vector<int64_t> pos = positions(call, q.rows);
  const int64_t ratio = call.whole("ratio", 1, INT32_MAX);
  const auto scale = static_cast<float>(call.number("scale"));
  const Rows y = call.result({q.rows, k.rows});
  const Weight keys{reinterpret_cast<const uint8_t*>(k.data), DLAB_F32, k.rows, dim, k.stride * 4};
  std::vector<float> products(static_cast<size_t>(heads * k.rows));
  for (int64_t r = 0; r < q.rows; ++r) {
    const Rows all{products.data(), heads, k.rows, k.rows};
    ops::linear(call.ctx, {q.row(r), heads, dim, dim}, keys, nullptr, all);
    const int64_t seen = complete(pos[static_cast<size_t>(r)], ratio, k.rows);
    for (int64_t b = 0; b < k.rows; ++b) {
      float sum = 0.0f;
      for (int64_t h = 0; h < heads; ++h) sum += all.row(h)[b] <= 0.0f ? 0.0f : all.row(h)[b];  // NaN stays
      y.row(r)[b] = b < seen ? sum * scale : 0.0f;
    }
  }
}

void select_cells(const Call& call) {
  const Rows scores = call.floats("scores", {-1, -1});
  const std::vector<int64_t> pos = positions(call, scores.rows);
  const int64_t ratio = call.whole("ratio", 1, INT32_MAX), budget = call.whole("budget", 0, INT32_MAX);
  const int64_t cells = call.whole("cells", 0, INT32_MAX);
  if (scores.width > cells / ratio) fail(DLAB_E_SHAPE, "scores has %lld blocks, expected at most %lld", ll(scores.width), ll(cells / ratio));
  const Call::Ids y = call.result_ids({scores.rows, cells});
  std::vector<int32_t> best(static_cast<size_t>(std::min(budget / ratio, scores.width)));
  for (int64_t r = 0; r < scores.rows; ++r) {
    int32_t* row = y.row(r);
    std::fill(row, row + cells, 0);
    const int64_t at = pos[static_cast<size_t>(r)], open = complete(at, ratio, scores.width);
    const int64_t taken = std::min(static_cast<int64_t>(best.size()), open);
    ops::largest(scores.row(r), nullptr, open, taken, best.data());
    for (int64_t i = 0; i < taken; ++i) std::fill_n(row + best[static_cast<size_t>(i)] * ratio, ratio, 1);
    for (int64_t c = (at + 1) / ratio * ratio; c <= at && c < cells; ++c) row[c] = 1;
  }
}

void select(const Call& call) {
  const Rows scores = call.floats("scores", {-1, -1});
  const std::vector<float> bias = call.has("bias") ? call.values("bias", {scores.width}) : std::vector<float>{};
  if (scores.width > INT32_MAX) fail(DLAB_E_SHAPE, "scores has rows of %lld values, expected at most 2^31-1", ll(scores.width));
  const int64_t k = call.whole("k", 1, scores.width);
  const Call::Ids y = call.result_ids({scores.rows, k});
  ops::each_row(call.ctx, scores.rows, [&](int64_t r) {
    ops::largest(scores.row(r), bias.empty() ? nullptr : bias.data(), scores.width, k, y.row(r));
  });
}

void choose(const Call& call) {
  const Rows scores = call.floats("scores", {-1, -1});
  const std::vector<int64_t> candidates = call.ids("candidates", {scores.rows, scores.width});
  const Call::Ids y = call.result_ids({scores.rows});
  for (int64_t r = 0; r < scores.rows; ++r) y.data[r] = ops::choose(scores.row(r), candidates.data() + r * scores.width, scores.width);
}

void selector_scores(const Call& call) {
  const Rows logits = call.floats("logits", {-1, -1}), hidden = call.floats("hidden", {logits.rows, -1});
  const std::vector<int64_t> candidates = call.ids("candidates", {logits.rows, -1}), previous = call.ids("previous", {logits.rows});
  const Weight predecessor = call.weight("predecessor", {-1, hidden.width}), successor = call.weight("successor", {-1, hidden.width});
  const int64_t count = call.axis("candidates", 1);
  const Rows y = call.result({logits.rows, count});
  for (int64_t r = 0; r < logits.rows; ++r)
    ops::selector_scores(call.ctx, logits.row(r), logits.width, candidates.data() + r * count, count, hidden.row(r),
                         previous[static_cast<size_t>(r)], predecessor, successor, y.row(r));
}

}  // namespace

const Operation kChoices[] = {
    {"index_scores", "q,k,pos", "ratio,scale", index_scores},
    {"select_cells", "scores,pos", "cells,ratio,budget", select_cells},
    {"select", "scores,[bias]", "k", select},
    {"choose", "scores,candidates", "", choose},
    {"selector_scores", "logits,candidates,hidden,previous,predecessor,successor", "", selector_scores},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace dlab
