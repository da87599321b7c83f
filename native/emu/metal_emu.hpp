// The Metal Shading Language on the emulator: what translated .metal files include in place of metal_stdlib.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine.hpp"
#include "language.hpp"
#include "metal_kernel.hpp"
#include "metal_types.hpp"

namespace emu {

inline unsigned lane() { return linear_index() % kWarp; }

inline void exchange(Exchange& x, Here h) { warp(WarpOp::Exchange, ~0u, reinterpret_cast<uintptr_t>(&x), 0, 32, h.place()); }

template <class T>
inline T shuffled(WarpOp op, T v, int argument, Here h) {
  return from_bits<T>(warp(op, ~0u, to_bits(v), argument, 32, h.place()));
}

}  // namespace emu

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b)); }

inline void threadgroup_barrier(mem_flags, emu::Here h = {}) { emu::barrier(0, h.place()); }
inline void simdgroup_barrier(mem_flags, emu::Here h = {}) { emu::warp(emu::WarpOp::Sync, ~0u, 0, 0, 32, h.place()); }

// Operations of a SIMD group of 32: every lane that has not returned must come.

template <class T>
inline T simd_shuffle(T v, ushort lane, emu::Here h = {}) { return emu::shuffled(emu::WarpOp::Shuffle, v, lane, h); }
template <class T>
inline T simd_shuffle_up(T v, ushort distance, emu::Here h = {}) { return emu::shuffled(emu::WarpOp::ShuffleUp, v, distance, h); }
template <class T>
inline T simd_shuffle_down(T v, ushort distance, emu::Here h = {}) { return emu::shuffled(emu::WarpOp::ShuffleDown, v, distance, h); }
template <class T>
inline T simd_shuffle_xor(T v, ushort lanes, emu::Here h = {}) { return emu::shuffled(emu::WarpOp::ShuffleXor, v, lanes, h); }
template <class T>
inline T simd_broadcast(T v, ushort lane, emu::Here h = {}) { return simd_shuffle(v, lane, h); }

inline bool simd_any(bool p, emu::Here h = {}) { return emu::warp(emu::WarpOp::Any, ~0u, p, 0, 32, h.place()) != 0; }
inline bool simd_all(bool p, emu::Here h = {}) { return emu::warp(emu::WarpOp::All, ~0u, p, 0, 32, h.place()) != 0; }

class simd_vote {
 public:
  using vote_t = ulong;
  explicit simd_vote(vote_t votes) : votes_(votes) {}
  explicit operator vote_t() const { return votes_; }
  bool all() const { return votes_ == 0xffffffffu; }
  bool any() const { return votes_ != 0; }

 private:
  vote_t votes_;
};
inline simd_vote simd_ballot(bool p, emu::Here h = {}) { return simd_vote(emu::warp(emu::WarpOp::Ballot, ~0u, p, 0, 32, h.place())); }

// A device's own order of a sum is not documented: here neighbours first, then neighbours of those.
#define EMU_SIMD_REDUCTION(name, expression)                                                     \
  template <class T>                                                                             \
  inline T name(T a, emu::Here h = {}) {                                                         \
    for (ushort distance = 1; distance < 32; distance *= 2) {                                    \
      const T b = simd_shuffle_xor(a, distance, h);                                              \
      a = static_cast<T>(expression);                                                            \
    }                                                                                            \
    return a;                                                                                    \
  }
EMU_SIMD_REDUCTION(simd_sum, a + b)
EMU_SIMD_REDUCTION(simd_product, a * b)
EMU_SIMD_REDUCTION(simd_min, b < a ? b : a)
EMU_SIMD_REDUCTION(simd_max, a < b ? b : a)
#undef EMU_SIMD_REDUCTION

// Mathematics in float.

using std::isfinite;
using std::isinf;
using std::isnan;
template <class T>
inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
inline T max(T a, T b) { return a < b ? b : a; }
template <class T>
inline T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <class T>
inline T select(T a, T b, bool take_b) { return take_b ? b : a; }
inline uint ctz(uint x) { return x ? static_cast<uint>(__builtin_ctz(x)) : 32; }
inline uint clz(uint x) { return x ? static_cast<uint>(__builtin_clz(x)) : 32; }
inline uint popcount(uint x) { return static_cast<uint>(__builtin_popcount(x)); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
inline float copysign(float a, float b) { return __builtin_copysignf(a, b); }
inline float pow(float a, float b) { return __builtin_powf(a, b); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
#define EMU_FUNCTION(name, builtin) inline float name(float x) { return builtin(x); }
EMU_FUNCTION(abs, __builtin_fabsf)
EMU_FUNCTION(fabs, __builtin_fabsf)
EMU_FUNCTION(sqrt, __builtin_sqrtf)
EMU_FUNCTION(exp, __builtin_expf)
EMU_FUNCTION(exp2, __builtin_exp2f)
EMU_FUNCTION(log, __builtin_logf)
EMU_FUNCTION(log2, __builtin_log2f)
EMU_FUNCTION(sin, __builtin_sinf)
EMU_FUNCTION(cos, __builtin_cosf)
EMU_FUNCTION(tanh, __builtin_tanhf)
EMU_FUNCTION(floor, __builtin_floorf)
EMU_FUNCTION(ceil, __builtin_ceilf)
EMU_FUNCTION(rint, __builtin_rintf)
EMU_FUNCTION(trunc, __builtin_truncf)
#undef EMU_FUNCTION

// Both are the host's own functions here; a device's fast ones are less accurate.
namespace precise {
using metal::cos, metal::exp, metal::exp2, metal::log, metal::log2, metal::pow, metal::rsqrt, metal::sin, metal::sqrt, metal::tanh;
}
namespace fast {
using metal::cos, metal::exp, metal::exp2, metal::log, metal::log2, metal::pow, metal::rsqrt, metal::sin, metal::sqrt, metal::tanh;
}

}  // namespace metal

#include "metal_matrix.hpp"
