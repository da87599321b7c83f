// The CUDA language and runtime on the emulator: what translated .cu files include in place of the CUDA headers.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <new>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda_math.hpp"
#include "cuda_runtime.hpp"
#include "cuda_types.hpp"
#include "engine.hpp"
#include "language.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")

namespace emu {

struct Config {
  Extent grid, block;
  size_t shared = 0;
  Stream* stream = nullptr;
};

inline Config config(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr) {
  return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, stream};
}

// kernel: a callable without state. Its arguments are copied here, as at a launch on a device.
template <class Kernel, class... Arguments>
inline void launch_kernel(const char* name, Here here, const Config& c, Kernel kernel, Arguments... arguments) {
  using Packed = std::tuple<Kernel, Arguments...>;
  Launch l;
  l.kernel = name;
  l.place = here.place();
  l.grid = c.grid;
  l.block = c.block;
  l.dynamic_shared = c.shared;
  l.closure.resize(sizeof(Packed));
  new (l.closure.data()) Packed(kernel, arguments...);
  l.body = [](const void* closure) {
    std::apply([](const Kernel& k, const Arguments&... a) { k(a...); }, *static_cast<const Packed*>(closure));
  };
  launch(std::move(l), c.stream);
}

}  // namespace emu

// Builtin variables are calls of const functions: the compiler asks once per thread.
#define threadIdx (::emu::as_uint3(::emu::thread_index()))
#define blockIdx (::emu::as_uint3(::emu::block_index()))
#define blockDim (::emu::as_dim3(::emu::block_extent()))
#define gridDim (::emu::as_dim3(::emu::grid_extent()))
constexpr int warpSize = 32;

namespace emu {
inline uint3 as_uint3(Index i) { return {i.x, i.y, i.z}; }
inline dim3 as_dim3(Extent e) { return {e.x, e.y, e.z}; }
}  // namespace emu

// Block and warp synchronisation.

inline void __syncthreads(emu::Here h = {}) { emu::barrier(0, h.place()); }
inline int __syncthreads_count(int p, emu::Here h = {}) { return emu::barrier(p, h.place()).count; }
inline int __syncthreads_and(int p, emu::Here h = {}) { return emu::barrier(p, h.place()).all; }
inline int __syncthreads_or(int p, emu::Here h = {}) { return emu::barrier(p, h.place()).any; }
inline void __syncwarp(unsigned mask = ~0u, emu::Here h = {}) { emu::warp(emu::WarpOp::Sync, mask, 0, 0, 32, h.place()); }
inline unsigned __activemask() { return emu::active_mask(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <class T>
inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, emu::Here h = {}) {
  return emu::from_bits<T>(emu::warp(emu::WarpOp::Shuffle, mask, emu::to_bits(v), lane, width, h.place()));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned distance, int width = 32, emu::Here h = {}) {
  return emu::from_bits<T>(emu::warp(emu::WarpOp::ShuffleUp, mask, emu::to_bits(v), static_cast<int>(distance), width, h.place()));
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned distance, int width = 32, emu::Here h = {}) {
  return emu::from_bits<T>(emu::warp(emu::WarpOp::ShuffleDown, mask, emu::to_bits(v), static_cast<int>(distance), width, h.place()));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, emu::Here h = {}) {
  return emu::from_bits<T>(emu::warp(emu::WarpOp::ShuffleXor, mask, emu::to_bits(v), lanes, width, h.place()));
}
inline unsigned __ballot_sync(unsigned mask, int p, emu::Here h = {}) {
  return static_cast<unsigned>(emu::warp(emu::WarpOp::Ballot, mask, p != 0, 0, 32, h.place()));
}
inline int __all_sync(unsigned mask, int p, emu::Here h = {}) {
  return static_cast<int>(emu::warp(emu::WarpOp::All, mask, p != 0, 0, 32, h.place()));
}
inline int __any_sync(unsigned mask, int p, emu::Here h = {}) {
  return static_cast<int>(emu::warp(emu::WarpOp::Any, mask, p != 0, 0, 32, h.place()));
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T v, emu::Here h = {}) {
  return static_cast<unsigned>(emu::warp(emu::WarpOp::Match, mask, emu::to_bits(v), 0, 32, h.place()));
}
#define EMU_REDUCE(name, operation)                                                                                                 \
  template <class T>                                                                                                                \
  inline T name(unsigned mask, T v, emu::Here h = {}) {                                                                             \
    static_assert(std::is_integral_v<T> && sizeof(T) == 4, #name " takes 32-bit integers");                                         \
    return static_cast<T>(emu::warp(emu::WarpOp::operation, mask, static_cast<uint32_t>(v), std::is_signed_v<T>, 32, h.place())); \
  }
EMU_REDUCE(__reduce_add_sync, Add)
EMU_REDUCE(__reduce_min_sync, Min)
EMU_REDUCE(__reduce_max_sync, Max)
EMU_REDUCE(__reduce_and_sync, And)
EMU_REDUCE(__reduce_or_sync, Or)
EMU_REDUCE(__reduce_xor_sync, Xor)
#undef EMU_REDUCE

// Atomic operations. Threads change places at synchronisations only, so a plain operation is atomic.

namespace emu {
template <class T, class F>
__attribute__((no_sanitize("thread"))) inline T atomically(T* p, Here h, F change) {
  atomic_access(p, sizeof(T), h.place());
  const T old = *p;
  *p = change(old);
  return old;
}
}  // namespace emu

#define EMU_ATOMIC_OP(name, expression)                                                                              \
  template <class T>                                                                                                 \
  inline T name(T* p, std::common_type_t<T> v, emu::Here h = {}) {                                                   \
    return emu::atomically(p, h, [v](T old) __attribute__((no_sanitize("thread"))) { return static_cast<T>(expression); }); \
  }
EMU_ATOMIC_OP(atomicAdd, old + v)
EMU_ATOMIC_OP(atomicSub, old - v)
EMU_ATOMIC_OP(atomicExch, (static_cast<void>(old), v))
EMU_ATOMIC_OP(atomicMin, old < v ? old : v)
EMU_ATOMIC_OP(atomicMax, old > v ? old : v)
EMU_ATOMIC_OP(atomicAnd, old & v)
EMU_ATOMIC_OP(atomicOr, old | v)
EMU_ATOMIC_OP(atomicXor, old ^ v)
EMU_ATOMIC_OP(atomicInc, old >= v ? 0 : old + 1)
EMU_ATOMIC_OP(atomicDec, old == 0 || old > v ? v : old - 1)
#undef EMU_ATOMIC_OP
template <class T>
inline T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> v, emu::Here h = {}) {
  return emu::atomically(p, h, [=](T old) __attribute__((no_sanitize("thread"))) { return old == expected ? v : old; });
}
