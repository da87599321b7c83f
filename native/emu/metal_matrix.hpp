// Matrices of 8 x 8 that a SIMD group holds together. Here lane l has the elements 2l and 2l+1, row after row; on a device the places are
// Apple's own, so thread_elements() is not there.
#pragma once

#include "metal_types.hpp"

namespace metal {

template <class T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix: 8 x 8");
  T own[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 2; ++i) own[i] = row() == column(i) ? diagonal : T(0.0f);
  }
  static int row() { return static_cast<int>(emu::lane()) / 4; }
  static int column(int i) { return static_cast<int>(emu::lane()) % 4 * 2 + i; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int Columns, int Rows>
inline simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> m;
  m.own[0] = m.own[1] = value;
  return m;
}

template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* from, ulong row_elements = 8, ulong2 origin = ulong2(0),
                           bool transposed = false) {
  for (int i = 0; i < 2; ++i) {
    const ulong r = m.row(), c = m.column(i);
    m.own[i] = from[(origin.y + (transposed ? c : r)) * row_elements + origin.x + (transposed ? r : c)];
  }
}

template <class T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* to, ulong row_elements = 8, ulong2 origin = ulong2(0),
                            bool transposed = false) {
  for (int i = 0; i < 2; ++i) {
    const ulong r = m.row(), c = m.column(i);
    to[(origin.y + (transposed ? c : r)) * row_elements + origin.x + (transposed ? r : c)] = m.own[i];
  }
}

// d = a b + c: eight fused multiply-adds in the order of k, rounded to the type of d each time. A device's own order is not documented.
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b,
                                          const simdgroup_matrix<C, 8, 8>& c, emu::Here h = {}) {
  emu::Exchange x;
  const float mine[4] = {float(a.own[0]), float(a.own[1]), float(b.own[0]), float(b.own[1])};
  __builtin_memcpy(x.mine, mine, sizeof mine);
  emu::exchange(x, h);
  float all[32][4];
  __builtin_memcpy(all, x.all, sizeof all);
  for (int i = 0; i < 2; ++i) {
    D sum = D(float(c.own[i]));
    for (int k = 0; k < 8; ++k) {
      const float left = all[d.row() * 4 + k / 2][k % 2], right = all[k * 4 + d.column(i) / 2][2 + d.column(i) % 2];
      sum = D(__builtin_fmaf(left, right, float(sum)));
    }
    d.own[i] = sum;
  }
}

template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b,
                               emu::Here h = {}) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0.0f)), h);
}

}  // namespace metal
