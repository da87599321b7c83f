// The check around every call of the CUDA runtime, and the stream behind a handle of the shared host code.
#pragma once

#include <cuda_runtime.h>

#include "gpu/device.hpp"

namespace dlab::gpu {

// Throws Error: NOMEM for memory that is not there, DEVICE for everything else; call: as it is written in the source.
void check(cudaError_t status, const char* call);
#define DLAB_CUDA(call) ::dlab::gpu::check((call), #call)
// After a launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

inline cudaStream_t stream_of(StreamHandle handle) { return reinterpret_cast<cudaStream_t>(handle); }

}  // namespace dlab::gpu
