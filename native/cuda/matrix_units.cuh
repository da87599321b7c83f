// Products by tensor cores, for weights in F16 or BF16.
#pragma once

#include "gpu/kernels.hpp"

namespace dlab::gpu {

void linear_by_matrix_units(StreamHandle, const float* x, int64_t m, const Matrix& w, const float* bias, float* y);

}  // namespace dlab::gpu
