// out = softmax(scale q k^T over visible cells) v, with grouped key/value heads.
//
// A threadgroup serves one query row and up to kHeads query heads of one key/value head, a SIMD group per query head. Cells go by in tiles
// of 32: lane c scores cell c against keys that the threadgroup shares in slices of kSlice, then each lane adds the tile's values for its
// own dimensions. The softmax is taken online: a running maximum, and sums that are rescaled when it grows. Scores are summed over 32
// dimensions at a time and values over a tile, each apart and then added: the order blocked:32, of dimensions and of cells.
#include "formats.h"
#include "reduce.h"
#include "sizes.h"

constant constexpr int kHeads = 4, kThreads = 32 * kHeads, kTile = 32, kSlice = 64, kChain = 32;

// Slots: a lane owns dimensions lane, lane+32, ... of the output, at most Slots of them.
template <int Slots>
kernel void attention(device const float* q [[buffer(0)]], device const uchar* k [[buffer(1)]], device const uchar* v [[buffer(2)]],
                      device const uchar* visible [[buffer(3)]], device const float* sinks [[buffer(4)]], device float* out [[buffer(5)]],
                      constant sizes::Attention& n [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                      ushort thread_index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                      ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float keys[kTile][kSlice + 1];  // one more, so that the lanes' rows lie in different banks
  threadgroup float weights[kHeads][kTile];
  const long row = group.x, kv_head = group.y, share = n.heads / n.kv_heads, member = long(group.z) * kHeads + simdgroup;
  const bool active = member < share;
  const long head = kv_head * share + (active ? member : 0), query = (row * n.heads + head) * n.dim;
  float top = n.has_sinks ? sinks[head] : -INFINITY, total = n.has_sinks ? 1.0f : 0.0f, sums[Slots] = {};
  bool any = false;
  for (long c0 = 0; c0 < n.cells; c0 += kTile) {
    const long cell = c0 + lane;
    const bool sees = cell < n.cells && (!n.has_mask || visible[row * n.cells + cell]);
    const uint seen = uint(simd_vote::vote_t(simd_ballot(sees)));
    if (seen == 0) continue;  // the same for every SIMD group of the threadgroup
    any = true;
    float score = 0.0f;
    for (long d0 = 0; d0 < n.dim; d0 += kSlice) {
      const int width = n.dim - d0 < kSlice ? int(n.dim - d0) : kSlice;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int i = thread_index; i < kTile * kSlice; i += kThreads) {
        const long c = c0 + i / kSlice, d = d0 + i % kSlice;
        keys[i / kSlice][i % kSlice] = c < n.cells && d < n.dim ? value_at(k, n.keys, (c * n.kv_heads + kv_head) * n.dim + d) : 0.0f;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int first = 0; first < width; first += kChain) {
        float part = 0.0f;
        for (int d = first; d < width && d < first + kChain; ++d) part = fma(q[query + d0 + d], keys[lane][d], part);
        score += part;
      }
    }
    score = sees ? score * n.scale : -INFINITY;
    const float highest = larger(top, largest_of_simdgroup(score));
    const float shrink = top == highest ? 1.0f : precise::exp(top - highest);
    const float weight = sees ? precise::exp(score - highest) : 0.0f;
    top = highest;
    total = total * shrink + sum_of_simdgroup(weight);
    weights[simdgroup][lane] = weight;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int s = 0; s < Slots; ++s) {
      const long d = lane + 32 * s;
      if (d >= n.dim) break;
      float sum = 0.0f;
      for (uint left = seen; left != 0; left &= left - 1) {  // unseen cells are skipped: their values never matter
        const uint c = ctz(left);
        sum = fma(weights[simdgroup][c], value_at(v, n.values, ((c0 + c) * n.kv_heads + kv_head) * n.dim + d), sum);
      }
      sums[s] = sums[s] * shrink + sum;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (int s = 0; active && s < Slots; ++s) {
    const long d = lane + 32 * s;
    if (d < n.dim) out[(row * n.heads + head) * n.dim + d] = any ? sums[s] / total : 0.0f;
  }
}

DLAB_INSTANCE("attention_128", attention, 4)
DLAB_INSTANCE("attention_256", attention, 8)
DLAB_INSTANCE("attention_512", attention, 16)
