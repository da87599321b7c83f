// Reductions in a written order: 32 lanes as a tree of neighbours, then the SIMD groups as one. simd_sum leaves its order to the device, so
// that its bits could not be declared.
#pragma once

#include <metal_stdlib>

using namespace metal;

static inline float sum_of_simdgroup(float value) {
  for (ushort distance = 1; distance < 32; distance *= 2) value += simd_shuffle_xor(value, distance);
  return value;
}

// NaN is passed over.
static inline float larger(float a, float b) { return a > b || isnan(b) ? a : b; }

static inline float largest_of_simdgroup(float value) {
  for (ushort distance = 1; distance < 32; distance *= 2) value = larger(value, simd_shuffle_xor(value, distance));
  return value;
}

// The sum over a threadgroup of up to 32 SIMD groups, in every thread. parts: one value per SIMD group.
static inline float sum_of_threadgroup(float value, threadgroup float* parts, ushort lane, ushort simdgroup, ushort simdgroups) {
  const float own = sum_of_simdgroup(value);
  if (lane == 0) parts[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return sum_of_simdgroup(lane < simdgroups ? parts[lane] : 0.0f);
}
