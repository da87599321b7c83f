// The steps of a drafter's walk over its rows, one row at a time, on the host.
#pragma once

#include "ops.hpp"

namespace dlab::ops {

// Indices of the k largest of n scores (+ bias, unless nullptr), largest first, the lowest first on ties; NaN comes last.
void largest(const float* scores, const float* bias, int64_t n, int64_t k, int32_t* out);
// The candidate of the largest score, the first on ties; -1 when all are NaN.
int32_t choose(const float* scores, const int64_t* candidates, int64_t n);
// scores[c] = logits[id] + sum(predecessor[previous] hidden successor[id]) of one row; NaN for ids outside their tables.
void selector_scores(dlab_ctx& ctx, const float* logits, int64_t vocab, const int64_t* candidates, int64_t count, const float* hidden,
                     int64_t previous, const Weight& predecessor, const Weight& successor, float* scores);

}  // namespace dlab::ops
