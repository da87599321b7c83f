// Scores of what can be chosen, and the choices: ties go to the lowest index, NaN comes last.
#include "each.cuh"
#include "gpu/kernels.hpp"
#include "reduce.cuh"

namespace dlab::gpu {
namespace {

constexpr int kThreads = 256;
using Rank = unsigned long long;

// Ordered as choices are: by value, then the lower index. NaN is -inf, and -0 is 0. Never 0.
__device__ Rank rank_of(float value, int64_t index) {
  const unsigned bits = __float_as_uint(value != value ? -INFINITY : value + 0.0f);
  const unsigned ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Rank>(ascending) << 32 | (0xffffffffu - static_cast<unsigned>(index));
}
__device__ int32_t index_of(Rank rank) { return static_cast<int32_t>(0xffffffffu - static_cast<unsigned>(rank)); }

// The whole block finds the best of a row that comes after `last`, its best before.
__device__ Rank next_best(const float* scores, const float* bias, int64_t n, Rank last) {
  Rank best = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const Rank mine = rank_of(bias ? scores[i] + bias[i] : scores[i], i);
    if (mine < last && mine > best) best = mine;
  }
  return over_block<kThreads>(best, Larger{});
}

__global__ void __launch_bounds__(kThreads) select_kernel(const float* __restrict__ scores, const float* __restrict__ bias, int64_t width,
                                                         int64_t k, int32_t* __restrict__ y) {
  const int64_t row = blockIdx.x;
  Rank last = ~Rank{0};
  for (int64_t j = 0; j < k; ++j) {
    last = next_best(scores + row * width, bias, width, last);
    if (threadIdx.x == 0) y[row * k + j] = index_of(last);
  }
}

__global__ void __launch_bounds__(kThreads) select_cells_kernel(const float* __restrict__ scores, int64_t blocks,
                                                               const int64_t* __restrict__ positions, int64_t cells, int64_t ratio,
                                                               int64_t budget, int32_t* y) {
  const int64_t row = blockIdx.x, pos = positions[row], open = min(blocks, (pos + 1) / ratio), taken = min(budget / ratio, open);
  int32_t* own = y + row * cells;
  for (int64_t c = threadIdx.x; c < cells; c += kThreads) own[c] = c >= (pos + 1) / ratio * ratio && c <= pos;
  __syncthreads();
  Rank last = ~Rank{0};
  for (int64_t j = 0; j < taken; ++j) {
    last = next_best(scores + row * blocks, nullptr, open, last);
    for (int64_t c = threadIdx.x; c < ratio; c += kThreads) own[index_of(last) * ratio + c] = 1;
  }
}

__global__ void choose_kernel(const float* __restrict__ scores, const int32_t* __restrict__ candidates, int64_t rows, int64_t count,
                              int32_t* __restrict__ y) {
  DLAB_EACH(r, rows) {
    int64_t best = -1;
    for (int64_t i = r * count; i < (r + 1) * count; ++i)
      if (scores[i] == scores[i] && (best < 0 || scores[i] > scores[best])) best = i;
    y[r] = best < 0 ? -1 : candidates[best];
  }
}

// A warp per row and block of cells; the heads in sequence.
__global__ void __launch_bounds__(32) index_scores_kernel(const float* __restrict__ q, int64_t heads, int64_t dim, const float* __restrict__ k,
                                                         const int64_t* __restrict__ pos, int64_t ratio, float scale, float* __restrict__ y) {
  const int64_t block = blockIdx.x, row = blockIdx.y;
  const int lane = threadIdx.x;
  const float* key = k + block * dim;
  float total = 0.0f;
  for (int64_t h = 0; h < heads; ++h) {
    const float* query = q + (row * heads + h) * dim;
    const float dot = sum_over_lanes(lane, dim, [&](int64_t i, float sum) { return fmaf(query[i], key[i], sum); });
    total += dot <= 0.0f ? 0.0f : dot;  // NaN stays
  }
  const bool complete = (pos[row] + 1) / ratio > block;
  if (lane == 0) y[row * gridDim.x + block] = complete ? total * scale : 0.0f;
}

// A warp per row and candidate. An unknown id's code is NaN, and so is its score.
__global__ void __launch_bounds__(32) selector_scores_kernel(const float* __restrict__ logits, int64_t vocab,
                                                            const int32_t* __restrict__ candidates, const float* __restrict__ hidden,
                                                            const float* __restrict__ before, const float* __restrict__ after, int64_t n,
                                                            float* __restrict__ y) {
  const int64_t row = blockIdx.y, at = row * gridDim.x + blockIdx.x, id = candidates[at];
  const int lane = threadIdx.x;
  const float *h = hidden + row * n, *a = before + row * n, *b = after + at * n;
  const float pair = sum_over_lanes(lane, n, [&](int64_t i, float sum) { return fmaf(a[i] * h[i], b[i], sum); });
  if (lane == 0) y[at] = id >= 0 && id < vocab ? logits[row * vocab + id] + pair : nanf("");
}

__global__ void to_target_kernel(const int32_t* __restrict__ ids, int64_t n, const int64_t* __restrict__ target_ids, int64_t count,
                                 int32_t* __restrict__ y) {
  DLAB_EACH(i, n) y[i] = ids[i] >= 0 && ids[i] < count ? static_cast<int32_t>(target_ids[ids[i]]) : -1;
}

__global__ void expert_weights_kernel(const float* __restrict__ scores, int64_t rows, int64_t experts, const int32_t* __restrict__ selected,
                                      int64_t ranks, bool normalise, float scale, float* __restrict__ y) {
  DLAB_EACH(i, rows * ranks) {
    const float* own = scores + i / ranks * experts;
    const int32_t* ids = selected + i / ranks * ranks;
    const float total = normalise ? sum_in_lanes(ranks, [&](int64_t j, float sum) { return sum + own[ids[j]]; }) : 1.0f;
    y[i] = own[selected[i]] / total * scale;
  }
}

__global__ void expert_sum_kernel(const float* __restrict__ x, const float* __restrict__ weights, int64_t rows, int64_t ranks, int64_t n,
                                  float* __restrict__ y) {
  DLAB_EACH(i, rows * n) {
    const int64_t row = i / n;
    const float* own = x + row * ranks * n + i % n;
    y[i] = sum_in_lanes(ranks, [&](int64_t j, float sum) { return fmaf(weights[row * ranks + j], own[j * n], sum); });
  }
}

unsigned count_of(int64_t n) { return static_cast<unsigned>(n); }

}  // namespace

void index_scores(StreamHandle stream, const float* q, int64_t rows, int64_t heads, int64_t dim, const float* k, int64_t blocks,
                  const int64_t* pos, int64_t ratio, float scale, float* y) {
  if (rows * blocks == 0) return;
  index_scores_kernel<<<dim3(count_of(blocks), count_of(rows)), 32, 0, stream_of(stream)>>>(q, heads, dim, k, pos, ratio, scale, y);
  check_launch("index_scores");
}

void select_cells(StreamHandle stream, const float* scores, int64_t rows, int64_t blocks, const int64_t* pos, int64_t cells, int64_t ratio,
                  int64_t budget, int32_t* y) {
  if (rows * cells == 0) return;
  select_cells_kernel<<<count_of(rows), kThreads, 0, stream_of(stream)>>>(scores, blocks, pos, cells, ratio, budget, y);
  check_launch("select_cells");
}

void select(StreamHandle stream, const float* scores, const float* bias, int64_t rows, int64_t width, int64_t k, int32_t* y) {
  if (rows == 0) return;
  select_kernel<<<count_of(rows), kThreads, 0, stream_of(stream)>>>(scores, bias, width, k, y);
  check_launch("select");
}

void choose(StreamHandle stream, const float* scores, const int32_t* candidates, int64_t rows, int64_t count, int32_t* y) {
  if (rows == 0) return;
  choose_kernel<<<each_blocks(rows), kEachThreads, 0, stream_of(stream)>>>(scores, candidates, rows, count, y);
  check_launch("choose");
}

void selector_scores(StreamHandle stream, const float* logits, int64_t rows, int64_t vocab, const int32_t* candidates, int64_t count,
                     const float* hidden, const float* before, const float* after, int64_t n, float* y) {
  if (rows * count == 0) return;
  const dim3 grid(count_of(count), count_of(rows));
  selector_scores_kernel<<<grid, 32, 0, stream_of(stream)>>>(logits, vocab, candidates, hidden, before, after, n, y);
  check_launch("selector_scores");
}

void to_target(StreamHandle stream, const int32_t* ids, int64_t n, const int64_t* target_ids, int64_t count, int32_t* y) {
  if (n == 0) return;
  to_target_kernel<<<each_blocks(n), kEachThreads, 0, stream_of(stream)>>>(ids, n, target_ids, count, y);
  check_launch("to_target");
}

void expert_weights(StreamHandle stream, const float* scores, int64_t rows, int64_t experts, const int32_t* selected, int64_t ranks,
                    bool normalise, float scale, float* y) {
  if (rows * ranks == 0) return;
  expert_weights_kernel<<<each_blocks(rows * ranks), kEachThreads, 0, stream_of(stream)>>>(scores, rows, experts, selected, ranks, normalise, scale, y);
  check_launch("expert_weights");
}

void expert_sum(StreamHandle stream, const float* x, const float* weights, int64_t rows, int64_t ranks, int64_t n, float* y) {
  if (rows * n == 0) return;
  expert_sum_kernel<<<each_blocks(rows * n), kEachThreads, 0, stream_of(stream)>>>(x, weights, rows, ranks, n, y);
  check_launch("expert_sum");
}

}  // namespace dlab::gpu
