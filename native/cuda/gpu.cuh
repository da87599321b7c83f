// The context of this library: one stream, and the checks and tables of the CPU library for what happens on the host.
#pragma once

#include <memory>
#include <vector>

#include "device.cuh"
#include "kernels.cuh"

namespace dlab::cuda {

// Decodes weight vectors wherever they lie; the other entries are not used here.
extern const Kernels kHostTable;

struct Gpu : dlab_ctx {
  Gpu() : dlab_ctx(kHostTable, 1) {}
  Stream stream;
  int32_t cell_dtype = DLAB_F32;  // of the fused drafter's context
};

inline Gpu& gpu(dlab_ctx& ctx) { return static_cast<Gpu&>(ctx); }

// A copy of host bytes on the device, in the order of the stream; waits for nothing when the source is pinned.
inline void upload(cudaStream_t stream, void* to, const void* from, int64_t bytes) {
  if (bytes) DLAB_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream));
}

}  // namespace dlab::cuda
