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

// The order lanes:32x4 of a product (linear.metal): lane l takes terms 4l .. 4l+3 of every 128 in one chain, then the lanes are added in a
// tree of neighbours. step(i, sum) returns sum with term i added.

// By one thread.
template <class Step>
static inline float sum_in_lanes(long n, Step step) {
  float level[6];  // sums of 1, 2, 4 .. neighbours that wait for theirs
  for (int lane = 0; lane < 32; ++lane) {
    float sum = 0.0f;
    for (long first = 4 * lane; first < n; first += 128)
      for (long i = first; i < first + 4 && i < n; ++i) sum = step(i, sum);
    int at = 0;
    for (; lane >> at & 1; ++at) sum = level[at] + sum;
    level[at] = sum;
  }
  return level[5];
}

// By the 32 lanes of a SIMD group; every lane gets the sum.
template <class Step>
static inline float sum_over_lanes(ushort lane, long n, Step step) {
  float sum = 0.0f;
  for (long first = 4 * lane; first < n; first += 128)
    for (long i = first; i < first + 4 && i < n; ++i) sum = step(i, sum);
  return sum_of_simdgroup(sum);
}

// Terms of a product: a[i * a_step] b[i * b_step].
struct Products {
  device const float* a;
  device const float* b;
  long a_step, b_step;
  float operator()(long i, float sum) const { return fma(a[i * a_step], b[i * b_step], sum); }
};
