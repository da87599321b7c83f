// nvcuda::wmma, of 16 x 16 x 16 tiles of half or bfloat16 with float32 sums, on the emulator.
//
// Lane l of a warp holds entries 8l .. 8l+7 of an accumulator, by rows; a factor is held whole by every lane. An entry of a product is the sum
// it had, then its 16 products in order, each exact before it is added: hardware adds them in an order of its own.
#pragma once

#include <type_traits>

#include "cuda_emu.hpp"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "the emulator has tiles of 16 x 16 x 16");
  static constexpr int num_elements = std::is_same_v<Use, accumulator> ? 8 : 256;
  T x[num_elements];
};

template <class F, class T>
inline void fill_fragment(F& f, T value, emu::Here here = {}) {
  __syncwarp(~0u, here);
  for (auto& entry : f.x) entry = value;
}

// Entry (row, column) of a factor at x[16 row + column].
template <class Use, class T, class Layout>
inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* from, unsigned stride, emu::Here here = {}) {
  __syncwarp(~0u, here);
  for (unsigned i = 0; i < 256; ++i)
    f.x[i] = std::is_same_v<Layout, row_major> ? from[i / 16 * stride + i % 16] : from[i % 16 * stride + i / 16];
}

template <class T, class LayoutA, class LayoutB>
inline void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
                     const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b, const fragment<accumulator, 16, 16, 16, float>& c,
                     emu::Here here = {}) {
  __syncwarp(~0u, here);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned row = (8 * lane + i) / 16, column = (8 * lane + i) % 16;
    float sum = c.x[i];
    for (unsigned k = 0; k < 16; ++k) sum = __builtin_fmaf(float(a.x[16 * row + k]), float(b.x[16 * k + column]), sum);
    d.x[i] = sum;
  }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& f, unsigned stride, layout_t layout,
                              emu::Here here = {}) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned row = (8 * lane + i) / 16, column = (8 * lane + i) % 16;
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = f.x[i];
  }
  __syncwarp(~0u, here);
}

}  // namespace nvcuda::wmma
