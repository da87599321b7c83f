// From a block's logits to its drafts: the plain choice, DFlash 2's selector walk, DSpark's Markov and confidence heads.
#include <cmath>
#include <limits>

#include "drafter.hpp"
#include "heads.hpp"

namespace dlab {

namespace {

using Values = std::vector<float>;

Values row_of(const Values& x, int64_t row, int64_t width) { return Values(x.begin() + row * width, x.begin() + (row + 1) * width); }

int32_t first_largest(const Values& x) {
  int32_t best = -1;
  for (size_t i = 0; i < x.size(); ++i)
    if (!std::isnan(x[i]) && (best < 0 || x[i] > x[static_cast<size_t>(best)])) best = static_cast<int32_t>(i);
  return best;
}

}  // namespace

CpuDrafter::Drafts CpuDrafter::draft(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome) {
  const int64_t first = config.predict_next ? 0 : 1;
  if (rows > first && config.selector_rank) return selector_walk(anchor, rows, hidden, outcome);
  if (rows > first && (config.markov != Markov::None || config.confidence != Confidence::None))
    return markov_walk(anchor, rows, hidden, outcome);
  Drafts made{{outcome.ids.begin() + first, outcome.ids.end()}, {}};
  if (weights.target_ids.empty()) return made;
  const std::vector<int64_t> ids(made.ids.begin(), made.ids.end());
  ops::to_target(ids, weights.target_ids, made.ids.data());
  emit("draft.drafts", made.ids.data(), 0, {rows - first}, DLAB_I32);
  return made;
}

CpuDrafter::Drafts CpuDrafter::selector_walk(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome) {
  const int64_t count = config.selector_top_k, vocab = config.draft_vocab;
  std::vector<int32_t> best(static_cast<size_t>(rows * count));
  ops::each_row(ctx, rows, [&](int64_t r) { ops::largest(outcome.logits.data() + r * vocab, nullptr, vocab, count, best.data() + r * count); });
  emit("draft.candidates", best.data(), 0, {rows, count}, DLAB_I32);
  const Values projected = project("draft.selector_hidden", rows_of(hidden, rows), weights.selector_hidden, {}, 0, 0);
  Drafts made;
  int32_t previous = anchor;
  for (int64_t r = config.predict_next ? 0 : 1; r < rows; ++r) {
    const std::string path = "draft.row" + std::to_string(r) + ".";
    const std::vector<int64_t> candidates(best.begin() + r * count, best.begin() + (r + 1) * count);
    Values scores = values(1, count);
    ops::selector_scores(ctx, outcome.logits.data() + r * vocab, vocab, candidates.data(), count,
                         projected.data() + r * config.selector_rank, previous, weights.predecessor, weights.successor, scores.data());
    emit(path + "selector_scores", scores.data(), 0, {1, count});
    previous = ops::choose(scores.data(), candidates.data(), count);
    emit(path + "pick", &previous, 0, {1}, DLAB_I32);
    made.ids.push_back(previous);
  }
  return made;
}

CpuDrafter::Drafts CpuDrafter::markov_walk(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome) {
  Drafts made;
  Values state = values(1, config.markov_rank);
  int32_t previous = anchor;
  for (int64_t r = config.predict_next ? 0 : 1; r < rows; ++r) {
    const std::string path = "draft.row" + std::to_string(r) + ".";
    const Values h = row_of(hidden, r, config.hidden);
    Values logits = row_of(outcome.logits, r, config.draft_vocab), embedded;
    if (config.markov != Markov::None) {
      embedded.assign(static_cast<size_t>(config.markov_rank), std::numeric_limits<float>::quiet_NaN());
      if (previous >= 0) ops::gather(ctx, weights.w1, &previous, 1.0, rows_of(embedded, 1));
      emit(path + "markov_embed", embedded.data(), 0, {1, config.markov_rank});
      const Values code = markov_code(path, embedded, h, state);
      const Values bias = project(path + "markov_bias", rows_of(code, 1), weights.w2, {}, 0, 0);
      Values sum(logits.size());
      ops::add(ctx, rows_of(logits, 1), rows_of(bias, 1), rows_of(sum, 1));
      emit(path + "logits", sum.data(), 0, {1, config.draft_vocab});
      logits = std::move(sum);
    }
    if (config.confidence != Confidence::None) {
      const Values in = config.confidence == Confidence::Markov ? join(path + "confidence_in", {&h, &embedded}) : h;
      const Values logit = project(path + "confidence_logit", rows_of(in, 1), weights.confidence, weights.confidence_bias, 0, 0);
      Values sure = values(1, 1);
      ops::squash(ctx, rows_of(logit, 1), 1.0, 1.0, rows_of(sure, 1));
      emit(path + "confidence", sure.data(), 0, {1, 1});
      made.confidence.push_back(sure[0]);
    }
    previous = first_largest(logits);
    emit(path + "pick", &previous, 0, {1}, DLAB_I32);
    if (!weights.target_ids.empty()) {
      ops::to_target({previous}, weights.target_ids, &previous);
      emit(path + "token", &previous, 0, {1}, DLAB_I32);
    }
    made.ids.push_back(previous);
  }
  return made;
}

// What W2 is applied to: the embedding itself, gated by the hidden row, or read out of a recurrent state, which moves on.
Values CpuDrafter::markov_code(const std::string& path, const Values& embedded, const Values& hidden, Values& state) {
  const int64_t rank = config.markov_rank;
  if (config.markov == Markov::Vanilla) return embedded;
  Values code(embedded.size());
  if (config.markov == Markov::Gated) {
    const Values in = join(path + "markov_in", {&hidden, &embedded});
    const Values gate = project(path + "markov_gate", rows_of(in, 1), weights.markov_gate, weights.markov_gate_bias, 0, 0);
    ops::gate(ctx, rows_of(embedded, 1), rows_of(gate, 1), rank, false, rows_of(code, 1));
    emit(path + "markov_gated", code.data(), 0, {1, rank});
    return code;
  }
  const Values in = join(path + "markov_in", {&state, &embedded, &hidden});
  const Values joint = project(path + "markov_joint", rows_of(in, 1), weights.markov_joint, weights.markov_joint_bias, 3, 0);
  ops::markov_output(ctx, rows_of(joint, 1), rows_of(code, 1));
  emit(path + "markov_out", code.data(), 0, {1, rank});
  Values next(state.size());
  ops::markov_state(ctx, rows_of(state, 1), rows_of(joint, 1), rows_of(next, 1));
  emit(path + "markov_state", next.data(), 0, {1, rank});
  state = std::move(next);
  return code;
}

Values CpuDrafter::join(const std::string& stage, std::initializer_list<const Values*> parts) {
  Values all;
  for (const Values* part : parts) all.insert(all.end(), part->begin(), part->end());
  emit(stage, all.data(), 0, {1, static_cast<int64_t>(all.size())});
  return all;
}

}  // namespace dlab
