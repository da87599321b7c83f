// Scores of what can be chosen, and the choices: ties go to the lowest index, NaN comes last.
#include "apply.hpp"
#include "ops.hpp"

namespace dlab {

namespace {

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
  ops::index_scores(call.ctx, q, heads, k, pos.data(), ratio, call.number("scale"), call.result({q.rows, k.rows}));
}

void select_cells(const Call& call) {
  const Rows scores = call.floats("scores", {-1, -1});
  const std::vector<int64_t> pos = positions(call, scores.rows);
  const int64_t ratio = call.whole("ratio", 1, INT32_MAX), budget = call.whole("budget", 0, INT32_MAX);
  const int64_t cells = call.whole("cells", 0, INT32_MAX);
  if (scores.width > cells / ratio) fail(DLAB_E_SHAPE, "scores has %lld blocks, expected at most %lld", ll(scores.width), ll(cells / ratio));
  ops::select_cells(call.ctx, scores, pos.data(), ratio, budget, call.result_ids({scores.rows, cells}));
}

void select(const Call& call) {
  const Rows scores = call.floats("scores", {-1, -1});
  const std::vector<float> bias = call.has("bias") ? call.values("bias", {scores.width}) : std::vector<float>{};
  if (scores.width > INT32_MAX) fail(DLAB_E_SHAPE, "scores has rows of %lld values, expected at most 2^31-1", ll(scores.width));
  const int64_t k = call.whole("k", 1, scores.width);
  ops::select(call.ctx, scores, bias.empty() ? nullptr : bias.data(), call.result_ids({scores.rows, k}));
}

void choose(const Call& call) {
  const Rows scores = call.floats("scores", {-1, -1});
  const std::vector<int64_t> candidates = call.ids("candidates", {scores.rows, scores.width});
  ops::choose(call.ctx, scores, candidates.data(), call.result_ids({scores.rows}).data);
}

void selector_scores(const Call& call) {
  const Rows logits = call.floats("logits", {-1, -1}), hidden = call.floats("hidden", {logits.rows, -1});
  const std::vector<int64_t> candidates = call.ids("candidates", {logits.rows, -1}), previous = call.ids("previous", {logits.rows});
  const Weight predecessor = call.weight("predecessor", {-1, hidden.width}), successor = call.weight("successor", {-1, hidden.width});
  const Rows y = call.result({logits.rows, call.axis("candidates", 1)});
  ops::selector_scores(call.ctx, logits, candidates.data(), hidden, previous.data(), predecessor, successor, y);
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
