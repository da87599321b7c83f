// y = x w^T + bias for 16-bit weights on SIMD-group matrices: the arithmetic metal-simdgroup.
//
// Activations are rounded to the weights' own format, products are exact in f32, and each multiply-accumulate of 8 x 8 x 8 adds eight of
// them to f32 sums, in an order that is the device's own. A threadgroup makes 16 rows of 32 outputs, a SIMD group 8 of these. Inputs beyond the
// last and rows beyond M are zeros, so that a row's bits do not depend on the rows beside it.
#include "formats.h"
#include "sizes.h"

constant constexpr int kSimdgroups = 4, kThreads = 32 * kSimdgroups, kRows = 16, kOutputs = 8 * kSimdgroups, kChunk = 32;

// What the matrices hold: halves as they are, bfloats as floats, which every device has matrices of.
struct HalfTile {
  typedef half value;
  typedef simdgroup_half8x8 matrix;
  static half rounded(float x) { return half(x); }
  static half at(device const ushort* w, long i) { return as_type<half>(w[i]); }
};

struct BfloatTile {
  typedef float value;
  typedef simdgroup_float8x8 matrix;
  static float rounded(float x) { return bfloat_of(to_bfloat(x)); }
  static float at(device const ushort* w, long i) { return bfloat_of(w[i]); }
};

template <class Tile>
kernel void linear_simdgroup(device const float* x [[buffer(0)]], device const uchar* w [[buffer(1)]], device const float* bias [[buffer(2)]],
                             device float* y [[buffer(3)]], constant sizes::Linear& n [[buffer(4)]],
                             uint2 group [[threadgroup_position_in_grid]], ushort thread_index [[thread_index_in_threadgroup]],
                             ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup typename Tile::value rows[kRows * kChunk];
  threadgroup typename Tile::value weights[kOutputs * kChunk];
  threadgroup float results[kRows * kOutputs];
  const long first_x = long(group.y) * kRows, first_w = long(group.x) * kOutputs;
  simdgroup_float8x8 upper = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), lower = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (long k0 = 0; k0 < n.width; k0 += kChunk) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = thread_index; i < kRows * kChunk; i += kThreads) {
      const long r = first_x + i / kChunk, k = k0 + i % kChunk;
      rows[i] = Tile::rounded(r < n.rows && k < n.width ? x[r * n.width + k] : 0.0f);
    }
    for (int i = thread_index; i < kOutputs * kChunk; i += kThreads) {
      const long r = first_w + i / kChunk, k = k0 + i % kChunk;
      device const ushort* row = reinterpret_cast<device const ushort*>(w + r * n.row_bytes);
      weights[i] = r < n.outputs && k < n.width ? Tile::at(row, k) : Tile::rounded(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < kChunk; k += 8) {
      typename Tile::matrix a, b;
      simdgroup_load(b, weights + 8 * simdgroup * kChunk + k, kChunk, ulong2(0), true);
      simdgroup_load(a, rows + k, kChunk);
      simdgroup_multiply_accumulate(upper, a, b, upper);
      simdgroup_load(a, rows + 8 * kChunk + k, kChunk);
      simdgroup_multiply_accumulate(lower, a, b, lower);
    }
  }
  simdgroup_store(upper, results + 8 * simdgroup, kOutputs);
  simdgroup_store(lower, results + 8 * kOutputs + 8 * simdgroup, kOutputs);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = thread_index; i < kRows * kOutputs; i += kThreads) {
    const long r = first_x + i / kOutputs, output = first_w + i % kOutputs;
    if (r < n.rows && output < n.outputs) y[r * n.outputs + output] = n.has_bias ? results[i] + bias[output] : results[i];
  }
}

DLAB_INSTANCE("linear_simdgroup_f16", linear_simdgroup, HalfTile)
DLAB_INSTANCE("linear_simdgroup_bf16", linear_simdgroup, BfloatTile)
