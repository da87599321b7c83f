// What the files that launch kernels share.
#pragma once

#include <algorithm>

#include "dispatch.hpp"

namespace dlab::gpu {

constexpr int64_t kRowThreads = 256;  // of kernels with a threadgroup per row

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A kernel with a thread per value, in strides of the grid.
inline void each(StreamHandle stream, const char* kernel, int64_t count, const std::vector<Argument>& arguments, Site site = {}) {
  constexpr int64_t kThreads = 256, kMaxGroups = 4096;
  if (count > 0) dispatch(stream, kernel, {std::min(ceil_div(count, kThreads), kMaxGroups)}, kThreads, arguments, site);
}

}  // namespace dlab::gpu
