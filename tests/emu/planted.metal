// Kernels with one mistake each, and the same without it: `wrong` chooses. The emulator must name the marked lines.
#include <metal_stdlib>
using namespace metal;

// A sum over the threadgroup that reads its neighbours' values. Without the barrier they may not be there yet.
kernel void group_sum(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& wrong [[buffer(2)]],
                      ushort t [[thread_index_in_threadgroup]]) {
  threadgroup float part[64];
  part[t] = x[t];  // MARK barrier.write
  if (!wrong) threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) {
    float total = 0.0f;
    for (int i = 0; i < 64; ++i) total += part[i];  // MARK barrier.read
    *y = total;
  }
}

kernel void shifted(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& wrong [[buffer(2)]],
                    ushort t [[thread_index_in_threadgroup]]) {
  threadgroup float part[64];
  part[t + (wrong ? 1 : 0)] = x[t];  // MARK bounds
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = part[t];
}

kernel void half_filled(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& wrong [[buffer(2)]],
                        ushort t [[thread_index_in_threadgroup]]) {
  threadgroup float part[64];
  if (!wrong || t < 32) part[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = part[63 - t];  // MARK uninitialised
}

kernel void diverging(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& wrong [[buffer(2)]],
                      ushort t [[thread_index_in_threadgroup]]) {
  float v = x[t];
  if (!wrong || t < 16) {
    v += simd_shuffle_xor(v, 1);  // MARK shuffle
  }
  y[t] = simd_any(v > 0.0f) ? v : 0.0f;  // MARK shuffle.others
}

// Threads that have nothing to do must come to the barrier all the same.
kernel void early(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& wrong [[buffer(2)]],
                  ushort t [[thread_index_in_threadgroup]]) {
  threadgroup float part[64];
  if (wrong && t >= 48) return;
  part[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);  // MARK early
  y[t] = part[t ^ 1];
}

// The other SIMD group's value, through memory that only a barrier of the whole threadgroup orders.
template <class T>
kernel void swapped(device const T* x [[buffer(0)]], device T* y [[buffer(1)]], constant int& wrong [[buffer(2)]],
                    threadgroup T* parts [[threadgroup(0)]], ushort t [[thread_index_in_threadgroup]],
                    ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  parts[t] = x[t];  // MARK simdgroup.write
  if (wrong) simdgroup_barrier(mem_flags::mem_threadgroup);
  else threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = parts[t ^ 32] + T(simdgroup);  // MARK simdgroup.read
}

#define SWAPPED(T) template [[host_name("swapped_" #T)]] [[kernel]] decltype(swapped<T>) swapped<T>;
SWAPPED(float)
SWAPPED(half)

// y = a b of two 8 x 8 matrices, by a SIMD group; without the barrier, of what is not all there.
kernel void matrices(device const half* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& wrong [[buffer(2)]],
                     ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup half a[64];
  for (int i = lane; i < 64; i += 32) a[i] = x[i];  // MARK matrix.write
  if (!wrong) simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_half8x8 left, right;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_load(left, a, 8);  // MARK matrix.read
  simdgroup_load(right, x + 64, 8, ulong2(0), true);
  simdgroup_multiply_accumulate(sum, left, right, sum);
  simdgroup_store(sum, y, 8);
}
