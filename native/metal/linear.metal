// y = x w^T + bias for stored weights and f32 activations.
//
// A SIMD group owns kRows output features. Of every chunk of 256 inputs lane l takes values 4l .. 4l+3 and 128+4l .. 128+4l+3 of each of its
// weight rows, decodes them in registers, and multiplies them with up to M activation rows that the threadgroup shares. Weights are read
// once, coalesced; an activation is read from threadgroup memory once for kRows products.
//
// Every output is the same sum for every M: lane l's products in order of the inputs, one chain of FMAs, then the 32 lanes added at
// distances 1, 2, 4, 8, 16: the order lanes:32x4. A row's bits therefore do not depend on the rows beside it.
#include "formats.h"
#include "sizes.h"

constant constexpr int kSimdgroups = 4, kRows = 4, kThreads = 32 * kSimdgroups, kChunk = 256;

template <class Format, int M>
kernel void linear(device const float* x [[buffer(0)]], device const uchar* w [[buffer(1)]], device const float* bias [[buffer(2)]],
                   device float* y [[buffer(3)]], constant sizes::Linear& n [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
                   ushort thread_index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                   ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float4 chunk[M][kChunk / 4];
  const long row0 = (long(group.x) * kSimdgroups + simdgroup) * kRows, first_x = long(group.y) * M;
  float sums[kRows * M] = {};
  for (long k0 = 0; k0 < n.width; k0 += kChunk) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = thread_index; i < M * kChunk / 4; i += kThreads) {
      const long r = first_x + i / (kChunk / 4), k = k0 + i % (kChunk / 4) * 4;
      float4 v = float4(0.0f);
      for (int t = 0; t < 4; ++t)
        if (r < n.rows && k + t < n.width) v[t] = x[r * n.width + k + t];
      chunk[i / (kChunk / 4)][i % (kChunk / 4)] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int part = 0; part < 2; ++part) {
      const int at = 32 * part + lane;
      float4 weights[kRows];
      for (int i = 0; i < kRows; ++i) {
        const long row = row0 + i < n.outputs ? row0 + i : n.outputs - 1;
        weights[i] = Format::quad(w + row * n.row_bytes, k0 + 4 * at, n.width);
      }
      for (int r = 0; r < M; ++r) {
        const float4 v = chunk[r][at];
        for (int i = 0; i < kRows; ++i) {
          float sum = sums[i * M + r];
          for (int t = 0; t < 4; ++t) sum = fma(weights[i][t], v[t], sum);
          sums[i * M + r] = sum;
        }
      }
    }
  }
  // The lanes' sums. While a lane has several, it keeps one half of them and gives the other to its partner; afterwards it holds sums
  // first .. first+left-1, and only one of the lanes that hold the same writes them.
  int first = 0, left = kRows * M;
  bool owner = true;
  for (ushort distance = 1; distance < 32; distance *= 2) {
    const bool upper = lane & distance;
    if (left > 1) {
      left /= 2;
      for (int i = 0; i < left; ++i) {
        const float kept = upper ? sums[i + left] : sums[i], given = upper ? sums[i] : sums[i + left];
        sums[i] = kept + simd_shuffle_xor(given, distance);
      }
      first += upper ? left : 0;
    } else {
      sums[0] += simd_shuffle_xor(sums[0], distance);
      owner = owner && !upper;
    }
  }
  for (int i = 0; owner && i < left; ++i) {
    const long row = row0 + (first + i) / M, r = first_x + (first + i) % M;
    if (row < n.outputs && r < n.rows) y[r * n.outputs + row] = n.has_bias ? sums[i] + bias[row] : sums[i];
  }
}

#define LINEAR(name, Format)                              \
  DLAB_INSTANCE("linear_" name "_1", linear, Format, 1)   \
  DLAB_INSTANCE("linear_" name "_4", linear, Format, 4)   \
  DLAB_INSTANCE("linear_" name "_16", linear, Format, 16)
DLAB_EACH_FORMAT(LINEAR)
