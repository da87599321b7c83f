// Mixtures of experts: weights of the selected, their products, the sum.
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
  ops::expert_weights(call.ctx, scores, selected.data(), normalise, call.number("scale"), call.result({scores.rows, ranks}));
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
  ops::expert_linear(call.ctx, x, selected.data(), ranks, w, call.result({x.rows, ranks, outputs}));
}

void expert_sum(const Call& call) {
  const Rows x = call.floats("x", {-1, -1, -1});
  const int64_t ranks = call.axis("x", 1), n = call.axis("x", 2);
  ops::expert_sum(call.ctx, x, call.floats("weights", {x.rows, ranks}), call.result({x.rows, n}));
}

}  // namespace

const Operation kExperts[] = {
    {"expert_weights", "scores,selected", "normalise,scale", expert_weights},
    {"expert_linear", "x,selected,w...", "", expert_linear},
    {"expert_sum", "x,weights", "", expert_sum},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace dlab
