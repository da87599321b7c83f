// Mixtures of experts: weights of the selected, their products, the sum.
#include <algorithm>
#include <map>

#include "apply.hpp"
#include "ops.hpp"

namespace dlab {

namespace {

std::vector<int64_t> selected_experts(const Call& call, int64_t rows, int64_t experts) {
  std::vector<int64_t> selected = call.ids("selected", {rows, -1});
  const int64_t ranks = call.axis("selected", 1);
  for (size_t i = 0; i < selected.size(); ++i)
    if (selected[i] < 0 || selected[i] >= experts)
      fail(DLAB_E_ARG, "selected[%lld,%lld] is %lld, expected 0..%lld", ll(static_cast<int64_t>(i) / ranks), ll(static_cast<int64_t>(i) % ranks),
           ll(selected[i]), ll(experts - 1));
  return selected;
}

void expert_weights(const Call& call) {
  const Rows scores = call.floats("scores", {-1, -1});
  const std::vector<int64_t> selected = selected_experts(call, scores.rows, scores.width);
  const int64_t ranks = call.axis("selected", 1);
  const bool normalise = call.whole("normalise", 0, 1) != 0;
  const auto scale = static_cast<float>(call.number("scale"));
  const Rows y = call.result({scores.rows, ranks});
  for (int64_t r = 0; r < scores.rows; ++r) {
    float sum = 0.0f;
    for (int64_t j = 0; j < ranks; ++j) {
      y.row(r)[j] = scores.row(r)[selected[static_cast<size_t>(r * ranks + j)]];
      sum += y.row(r)[j];
    }
    for (int64_t j = 0; j < ranks; ++j) y.row(r)[j] = (normalise ? y.row(r)[j] / sum : y.row(r)[j]) * scale;
  }
}

void expert_linear(const Call& call) {
  const bool by_rank = call.tensor("x")->ndim == 3;
  const Rows x = by_rank ? call.floats("x", {-1, -1, -1}) : call.floats("x", {-1, -1});
  const int64_t experts = call.count("w"), width = by_rank ? call.axis("x", 2) : x.width;
  call.weight("w", {-1, width});
  const int64_t outputs = call.axis("w", 0);
  std::vector<Weight> w;
  for (int64_t e = 0; e < experts; ++e) w.push_back(call.weight("w", {outputs, width}, e));
  const std::vector<int64_t> selected = selected_experts(call, x.rows, experts);
  const int64_t ranks = call.axis("selected", 1);
  if (by_rank && call.axis("x", 1) != ranks) fail(DLAB_E_SHAPE, "x has %lld ranks, selected %lld", ll(call.axis("x", 1)), ll(ranks));
  const Rows y = call.result({x.rows, ranks, outputs});
  std::map<int64_t, std::vector<int64_t>> places;  // of each selected expert: row * ranks + rank
  for (size_t i = 0; i < selected.size(); ++i) places[selected[i]].push_back(static_cast<int64_t>(i));
  for (const auto& [expert, at] : places) {
    const auto rows = static_cast<int64_t>(at.size());
    std::vector<float> in(static_cast<size_t>(rows * width)), out(static_cast<size_t>(rows * outputs));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t place = at[static_cast<size_t>(i)];
      const float* from = x.row(place / ranks) + (by_rank ? place % ranks * width : 0);
      std::copy(from, from + width, in.begin() + i * width);
    }
    ops::linear(call.ctx, {in.data(), rows, width, width}, w[static_cast<size_t>(expert)], nullptr, {out.data(), rows, outputs, outputs});
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t place = at[static_cast<size_t>(i)];
      std::copy(out.begin() + i * outputs, out.begin() + (i + 1) * outputs, y.row(place / ranks) + place % ranks * outputs);
    }
  }
}

void expert_sum(const Call& call) {
  const Rows x = call.floats("x", {-1, -1, -1});
  const int64_t ranks = call.axis("x", 1), n = call.axis("x", 2);
  const Rows weights = call.floats("weights", {x.rows, ranks}), y = call.result({x.rows, n});
  ops::each_row(call.ctx, x.rows, [&](int64_t r) { call.ctx.kernels.weighted_sum(x.row(r), weights.row(r), ranks, n, y.row(r)); });
}

}  // namespace

const Operation kExperts[] = {
    {"expert_weights", "scores,selected", "normalise,scale", expert_weights},
    {"expert_linear", "x,selected,w...", "", expert_linear},
    {"expert_sum", "x,weights", "", expert_sum},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace dlab
