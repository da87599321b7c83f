// Scores of what can be chosen, and the choices: ties go to the lowest index, NaN comes last.
#include "each.h"
#include "reduce.h"
#include "sizes.h"

constant constexpr int kThreads = 256, kSimdgroups = kThreads / 32;

// Ordered as choices are: x by the value, y by the lower index. NaN is -inf, and -0 is 0. Never (0, 0), which is none.
static uint2 rank_of(float value, long index) {
  const uint bits = as_type<uint>(isnan(value) ? -INFINITY : value + 0.0f);
  return uint2(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 0xffffffffu - uint(index));
}
static int index_of(uint2 rank) { return int(0xffffffffu - rank.y); }
static bool above(uint2 a, uint2 b) { return a.x > b.x || (a.x == b.x && a.y > b.y); }

// The best of a row that comes after `last`, its best before; `bias` where there is one. The whole threadgroup, all of which gets it.
static uint2 next_best(device const float* scores, device const float* bias, bool has_bias, long n, uint2 last, threadgroup uint2* parts,
                       ushort thread_index, ushort lane, ushort simdgroup) {
  uint2 best = uint2(0);
  for (long i = thread_index; i < n; i += kThreads) {
    const uint2 mine = rank_of(has_bias ? scores[i] + bias[i] : scores[i], i);
    if (above(last, mine) && above(mine, best)) best = mine;
  }
  for (ushort distance = 16; distance > 0; distance /= 2) {
    const uint2 other = uint2(simd_shuffle_xor(best.x, distance), simd_shuffle_xor(best.y, distance));
    if (above(other, best)) best = other;
  }
  if (lane == 0) parts[simdgroup] = best;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int s = 0; s < kSimdgroups; ++s)
    if (above(parts[s], best)) best = parts[s];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return best;
}

#define ROW_OF_THREADS                                                                                            \
  uint row [[threadgroup_position_in_grid]], ushort thread_index [[thread_index_in_threadgroup]],                 \
      ushort lane [[thread_index_in_simdgroup]], ushort simdgroup [[simdgroup_index_in_threadgroup]]

kernel void select_best(device const float* scores [[buffer(0)]], device const float* bias [[buffer(1)]], device int* y [[buffer(2)]],
                        constant sizes::Select& n [[buffer(3)]], ROW_OF_THREADS) {
  threadgroup uint2 parts[kSimdgroups];
  uint2 last = uint2(0xffffffffu);
  for (long j = 0; j < n.k; ++j) {
    last = next_best(scores + row * n.width, bias, n.has_bias, n.width, last, parts, thread_index, lane, simdgroup);
    if (thread_index == 0) y[row * n.k + j] = index_of(last);
  }
}

kernel void select_cells(device const float* scores [[buffer(0)]], device const long* positions [[buffer(1)]], device int* y [[buffer(2)]],
                         constant sizes::SelectCells& n [[buffer(3)]], ROW_OF_THREADS) {
  threadgroup uint2 parts[kSimdgroups];
  const long pos = positions[row], complete = (pos + 1) / n.ratio, open = n.blocks < complete ? n.blocks : complete;
  const long budget = n.budget / n.ratio, taken = budget < open ? budget : open;
  device int* own = y + row * n.cells;
  for (long c = thread_index; c < n.cells; c += kThreads) own[c] = c >= complete * n.ratio && c <= pos;
  threadgroup_barrier(mem_flags::mem_device);
  uint2 last = uint2(0xffffffffu);
  for (long j = 0; j < taken; ++j) {
    last = next_best(scores + row * n.blocks, scores, false, open, last, parts, thread_index, lane, simdgroup);
    for (long c = thread_index; c < n.ratio; c += kThreads) own[index_of(last) * n.ratio + c] = 1;
  }
}

kernel void choose(device const float* scores [[buffer(0)]], device const int* candidates [[buffer(1)]], device int* y [[buffer(2)]],
                   constant sizes::Rows& n [[buffer(3)]], THIS_THREAD) {
  EACH(r, n.rows) {
    long best = -1;
    for (long i = r * n.width; i < (r + 1) * n.width; ++i)
      if (!isnan(scores[i]) && (best < 0 || scores[i] > scores[best])) best = i;
    y[r] = best < 0 ? -1 : candidates[best];
  }
}

// A SIMD group per row and block of cells; the heads in sequence.
kernel void index_scores(device const float* q [[buffer(0)]], device const float* k [[buffer(1)]], device const long* positions [[buffer(2)]],
                         device float* y [[buffer(3)]], constant sizes::IndexScores& n [[buffer(4)]],
                         uint2 group [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {
  const long block = group.x, row = group.y;
  float total = 0.0f;
  for (long h = 0; h < n.heads; ++h) {
    const Products products = {q + (row * n.heads + h) * n.dim, k + block * n.dim, 1, 1};
    const float dot = sum_over_lanes(lane, n.dim, products);
    total += dot <= 0.0f ? 0.0f : dot;  // NaN stays
  }
  const bool complete = (positions[row] + 1) / n.ratio > block;
  if (lane == 0) y[row * n.blocks + block] = complete ? total * n.scale : 0.0f;
}

struct Pairs {
  device const float* before;
  device const float* hidden;
  device const float* after;
  float operator()(long i, float sum) const { return fma(before[i] * hidden[i], after[i], sum); }
};

// A SIMD group per row and candidate. An unknown id's code is NaN, and so is its score.
kernel void selector_scores(device const float* logits [[buffer(0)]], device const int* candidates [[buffer(1)]],
                            device const float* hidden [[buffer(2)]], device const float* before [[buffer(3)]],
                            device const float* after [[buffer(4)]], device float* y [[buffer(5)]],
                            constant sizes::SelectorScores& n [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                            ushort lane [[thread_index_in_simdgroup]]) {
  const long row = group.y, at = row * n.count + group.x, id = candidates[at];
  const Pairs pairs = {before + row * n.n, hidden + row * n.n, after + at * n.n};
  const float pair = sum_over_lanes(lane, n.n, pairs);
  if (lane == 0) y[at] = id >= 0 && id < n.vocab ? logits[row * n.vocab + id] + pair : NAN;
}

kernel void to_target(device const int* ids [[buffer(0)]], device const long* target_ids [[buffer(1)]], device int* y [[buffer(2)]],
                      constant sizes::Rows& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.rows) y[i] = ids[i] >= 0 && ids[i] < n.width ? int(target_ids[ids[i]]) : -1;
}

struct Chosen {
  device const float* scores;
  device const int* ids;
  float operator()(long j, float sum) const { return sum + scores[ids[j]]; }
};

kernel void expert_weights(device const float* scores [[buffer(0)]], device const int* selected [[buffer(1)]], device float* y [[buffer(2)]],
                           constant sizes::Experts& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.rows * n.ranks) {
    const Chosen chosen = {scores + i / n.ranks * n.experts, selected + i / n.ranks * n.ranks};
    const float total = n.normalise ? sum_in_lanes(n.ranks, chosen) : 1.0f;
    y[i] = chosen.scores[selected[i]] / total * n.scale;
  }
}

kernel void expert_sum(device const float* x [[buffer(0)]], device const float* weights [[buffer(1)]], device float* y [[buffer(2)]],
                       constant sizes::Streams& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.rows * n.n) {
    const long row = i / n.n;
    const Products products = {weights + row * n.streams, x + row * n.streams * n.n + i % n.n, 1, n.n};
    y[i] = sum_in_lanes(n.streams, products);
  }
}
