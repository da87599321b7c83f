// Operations that look at a whole row.
#include "formats.h"
#include "reduce.h"
#include "sizes.h"

constant constexpr int kThreads = 256, kSimdgroups = kThreads / 32;

// A threadgroup per group of a row. The sum of squares in the order lanes:256.
kernel void rms_norm(device const float* x [[buffer(0)]], device const float* w [[buffer(1)]], device float* y [[buffer(2)]],
                     constant sizes::RmsNorm& n [[buffer(3)]], uint index [[threadgroup_position_in_grid]],
                     ushort thread_index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                     ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[kSimdgroups];
  const long group = index % n.groups, start = index * n.width;
  float sum = 0.0f;
  for (long i = thread_index; i < n.width; i += kThreads) sum = fma(x[start + i], x[start + i], sum);
  sum = sum_of_threadgroup(sum, parts, lane, simdgroup, kSimdgroups);
  const float root = precise::sqrt(sum / float(n.width) + n.eps);
  const long own = n.shared ? 0 : group * n.width;
  for (long i = thread_index; i < n.width; i += kThreads) {
    const float v = x[start + i] / root;
    y[start + i] = n.has_weight ? v * (w[own + i] + n.offset) : v;
  }
}

// A SIMD group per row. The sum in the order lanes:32x4.
kernel void softmax(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant sizes::Rows& n [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {
  const long start = row * n.width;
  float top = -INFINITY, total = 0.0f;
  for (long i = lane; i < n.width; i += 32) top = larger(top, x[start + i] * n.scale);
  top = largest_of_simdgroup(top);
  for (long first = 4 * lane; first < n.width; first += 128)
    for (long i = first; i < first + 4 && i < n.width; ++i) total += precise::exp(x[start + i] * n.scale - top);
  total = sum_of_simdgroup(total);
  for (long i = lane; i < n.width; i += 32) y[start + i] = precise::exp(x[start + i] * n.scale - top) / total;
}

// The two best of a set: larger values first, then lower indices. Index -1: none.
struct Best {
  float2 value;
  int2 index;

  static bool before(float a, int i, float b, int j) {
    if (i < 0 || j < 0) return i >= 0;
    return a > b || (a == b && i < j);
  }

  void take(float v, int i) {
    if (i < 0 || isnan(v)) return;
    if (before(v, i, value.x, index.x)) {
      value = float2(v, value.x);
      index = int2(i, index.x);
    } else if (before(v, i, value.y, index.y)) {
      value.y = v;
      index.y = i;
    }
  }
};

// A threadgroup per row.
kernel void top2(device const float* x [[buffer(0)]], device int* ids [[buffer(1)]], device float* values [[buffer(2)]],
                 constant sizes::Rows& n [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                 ushort thread_index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                 ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float2 part_values[kSimdgroups];
  threadgroup int2 part_indices[kSimdgroups];
  Best best = {float2(0.0f), int2(-1)};
  for (long i = thread_index; i < n.width; i += kThreads) best.take(x[row * n.width + i], int(i));
  for (ushort distance = 16; distance > 0; distance /= 2) {
    const float2 value = float2(simd_shuffle_xor(best.value.x, distance), simd_shuffle_xor(best.value.y, distance));
    const int2 at = int2(simd_shuffle_xor(best.index.x, distance), simd_shuffle_xor(best.index.y, distance));
    best.take(value.x, at.x);
    best.take(value.y, at.y);
  }
  if (lane == 0) {
    part_values[simdgroup] = best.value;
    part_indices[simdgroup] = best.index;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index != 0) return;
  for (int s = 1; s < kSimdgroups; ++s) {
    best.take(part_values[s].x, part_indices[s].x);
    best.take(part_values[s].y, part_indices[s].y);
  }
  for (int i = 0; i < 2; ++i) {
    ids[row * 2 + i] = best.index[i];
    values[row * 2 + i] = best.index[i] < 0 ? NAN : best.value[i];
  }
}
