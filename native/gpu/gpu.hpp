// The context of a library for a device: one stream, and the checks and tables of the CPU library for what happens on the host.
#pragma once

#include <memory>
#include <vector>

#include "gpu/device.hpp"
#include "gpu/kernels.hpp"

namespace dlab::gpu {

// Decodes weight vectors wherever they lie; the other entries are not used here.
extern const Kernels kHostTable;

struct Gpu : dlab_ctx {
  Gpu() : dlab_ctx(kHostTable, 1) {}
  Stream stream;
  int32_t cell_dtype = DLAB_F32;  // of the fused drafter's context
  Products products = Products::Lanes;
};

inline Gpu& context(dlab_ctx& ctx) { return static_cast<Gpu&>(ctx); }

}  // namespace dlab::gpu
