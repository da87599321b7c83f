// From a block's logits to its drafts: the plain choice, DFlash 2's selector walk, DSpark's Markov and confidence heads.
//
// A walk goes row by row, since each choice depends on the one before; the host knows none of them while it issues the work.
#include "gpu/device_drafter.hpp"

namespace dlab::gpu {

void DeviceDrafter::draft(Pass& pass, const float* hidden, const float* logits) {
  const int64_t first = first_draft(), drafted = pass.rows - first;
  if (drafted == 0) return;
  drafts_.grow(drafted);
  confidence_.grow(drafted);
  if (config.selector_rank) return selector_walk(pass, hidden, logits);
  if (config.markov != Markov::None || config.confidence != Confidence::None) return markov_walk(pass, hidden, logits);
  if (weights_.target_ids.count() == 0) return move(pass.stream, drafts_.get(), picks_.get() + first, drafted * 4);
  to_target(pass.stream, picks_.get() + first, drafted, weights_.target_ids.get(), weights_.target_ids.count(), drafts_.get());
  emit(pass, "draft.drafts", drafts_.get(), {drafted}, DLAB_I32);
}

void DeviceDrafter::selector_walk(Pass& pass, const float* hidden, const float* logits) {
  const int64_t rows = pass.rows, count = config.selector_top_k, vocab = config.draft_vocab, rank = config.selector_rank;
  candidates_.grow(rows * count);
  select(pass.stream, logits, nullptr, rows, vocab, count, candidates_.get());
  emit(pass, "draft.candidates", candidates_.get(), {rows, count}, DLAB_I32);
  const float* projected = project(pass, "draft.selector_hidden", hidden, weights_.selector_hidden, nullptr, 0);
  float* codes = pass.space.floats("codes", rows * count * rank);
  gather(pass.stream, weights_.successor.view, candidates_.get(), rows * count, 1.0f, codes);
  float* before = pass.space.floats("code", rank);
  const int32_t* previous = ids_.get();  // the anchor
  for (int64_t r = first_draft(); r < rows; ++r) {
    const std::string path = "draft.row" + std::to_string(r) + ".";
    const int32_t* candidates = candidates_.get() + r * count;
    int32_t* chosen = drafts_.get() + r - first_draft();
    float* scores = pass.space.floats(path + "selector_scores", count);
    gather(pass.stream, weights_.predecessor.view, previous, 1, 1.0f, before);
    selector_scores(pass.stream, logits + r * vocab, 1, vocab, candidates, count, projected + r * rank, before, codes + r * count * rank, rank,
                    scores);
    emit(pass, path + "selector_scores", scores, {1, count});
    choose(pass.stream, scores, candidates, 1, count, chosen);
    emit(pass, path + "pick", chosen, {1}, DLAB_I32);
    previous = chosen;
  }
}

void DeviceDrafter::markov_walk(Pass& pass, const float* hidden, const float* logits) {
  const int64_t rank = config.markov_rank, vocab = config.draft_vocab;
  Pass row{pass.stream, pass.space, 1, 0, pass.pos, pass.cell};
  float* start = pass.space.floats("markov.start", rank);
  const std::vector<float> zeros(static_cast<size_t>(rank));
  upload(pass.stream, start, zeros.data(), rank * 4);
  row_best_.grow(2);
  const float* state = start;
  const int32_t* previous = ids_.get();  // the anchor
  for (int64_t r = first_draft(); r < pass.rows; ++r) {
    const std::string path = "draft.row" + std::to_string(r) + ".";
    const float *h = hidden + r * config.hidden, *own = logits + r * vocab;
    float* embedded = pass.space.floats(path + "markov_embed", rank);
    if (config.markov != Markov::None) {
      gather(pass.stream, weights_.w1.view, previous, 1, 1.0f, embedded);
      emit(row, path + "markov_embed", embedded, {1, rank});
      const float* code = markov_code(path, row, embedded, h, state);
      const float* bias = project(row, path + "markov_bias", code, weights_.w2, nullptr, 0);
      float* sum = pass.space.floats(path + "logits", vocab);
      add(pass.stream, own, bias, vocab, sum);
      emit(row, path + "logits", sum, {1, vocab});
      own = sum;
    }
    if (config.confidence != Confidence::None) {
      const float* in = config.confidence == Confidence::Markov ? join(row, path + "confidence_in", {{h, config.hidden}, {embedded, rank}}) : h;
      const float* logit = project(row, path + "confidence_logit", in, weights_.confidence, &weights_.confidence_bias, 0);
      float* sure = confidence_.get() + r - first_draft();
      squash(pass.stream, logit, 1, 1.0f, 1.0f, sure);
      emit(row, path + "confidence", sure, {1, 1});
    }
    int32_t* chosen = drafts_.get() + r - first_draft();
    top2(pass.stream, own, 1, vocab, row_best_.get(), pass.space.floats("best", 2));
    move(pass.stream, chosen, row_best_.get(), 4);
    emit(row, path + "pick", chosen, {1}, DLAB_I32);
    if (weights_.target_ids.count()) {
      to_target(pass.stream, row_best_.get(), 1, weights_.target_ids.get(), weights_.target_ids.count(), chosen);
      emit(row, path + "token", chosen, {1}, DLAB_I32);
    }
    previous = chosen;
  }
}

// What W2 is applied to: the embedding itself, gated by the hidden row, or read out of a recurrent state, which moves on.
const float* DeviceDrafter::markov_code(const std::string& path, Pass& row, const float* embedded, const float* hidden, const float*& state) {
  const int64_t rank = config.markov_rank;
  if (config.markov == Markov::Vanilla) return embedded;
  if (config.markov == Markov::Gated) {
    const float* in = join(row, path + "markov_in", {{hidden, config.hidden}, {embedded, rank}});
    const float* logits = project(row, path + "markov_gate", in, weights_.markov_gate, &weights_.markov_gate_bias, 0);
    float* code = row.space.floats(path + "markov_gated", rank);
    gate(row.stream, embedded, logits, 1, rank, 1, true, false, code);
    emit(row, path + "markov_gated", code, {1, rank});
    return code;
  }
  const float* in = join(row, path + "markov_in", {{state, rank}, {embedded, rank}, {hidden, config.hidden}});
  const float* joint = project(row, path + "markov_joint", in, weights_.markov_joint, &weights_.markov_joint_bias, 3);
  float* code = row.space.floats(path + "markov_out", rank);
  markov_output(row.stream, joint, 1, rank, code);
  emit(row, path + "markov_out", code, {1, rank});
  float* next = row.space.floats(path + "markov_state", rank);
  markov_state(row.stream, state, joint, 1, rank, next);
  emit(row, path + "markov_state", next, {1, rank});
  state = next;
  return code;
}

// Side by side, as one row.
const float* DeviceDrafter::join(Pass& row, const std::string& stage, std::initializer_list<Part> parts) {
  int64_t count = 0;
  for (const Part& part : parts) count += part.count;
  float *all = row.space.floats(stage, count), *to = all;
  for (const Part& part : parts) {
    move(row.stream, to, part.values, part.count * 4);
    to += part.count;
  }
  emit(row, stage, all, {1, count});
  return all;
}

}  // namespace dlab::gpu
