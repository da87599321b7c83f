// Kernels that a backend may lack (kernels.hpp, from "Element-wise and on streams" on): these stand in for them. What needs them is not
// offered: operation_tables() lists none of their operations, and backend::heads is false.
#include "gpu/kernels.hpp"

namespace dlab::gpu {

#define DLAB_LACKING(name, ...) \
  __attribute__((weak)) void name(__VA_ARGS__) { fail(DLAB_E_UNSUPPORTED, "this library has no kernel " #name); }

DLAB_LACKING(squash, StreamHandle, const float*, int64_t, float, float, float*)
DLAB_LACKING(silu, StreamHandle, const float*, int64_t, float, float*)
DLAB_LACKING(decay, StreamHandle, const float*, int64_t, int64_t, const float*, const float*, float*)
DLAB_LACKING(l2_norm, StreamHandle, const float*, int64_t, int64_t, double, float, float*)
DLAB_LACKING(hc_read, StreamHandle, const float*, const float*, int64_t, int64_t, int64_t, float*)
DLAB_LACKING(hc_write, StreamHandle, const float*, const float*, const float*, int64_t, int64_t, int64_t, float*)
DLAB_LACKING(ple_gate, StreamHandle, const float*, const float*, int64_t, int64_t, float*)
DLAB_LACKING(stream_gate, StreamHandle, const float*, const float*, int64_t, int64_t, int64_t, float*)
DLAB_LACKING(markov_state, StreamHandle, const float*, const float*, int64_t, int64_t, float*)
DLAB_LACKING(markov_output, StreamHandle, const float*, int64_t, int64_t, float*)
DLAB_LACKING(short_conv, StreamHandle, const float*, const float*, const float*, int64_t, int64_t, int64_t, int64_t, float*)
DLAB_LACKING(dynamic_conv, StreamHandle, const float*, const float*, const float*, int64_t, int64_t, int64_t, int64_t, int64_t, float*)
DLAB_LACKING(delta_state, StreamHandle, const ops::DeltaSizes&, const float*, const float*, const float*, const float*, const float*,
             float*)
DLAB_LACKING(delta_read, StreamHandle, const ops::DeltaSizes&, const float*, const float*, float*)
DLAB_LACKING(block_mean, StreamHandle, const float*, int64_t, int64_t, int64_t, float*)
DLAB_LACKING(index_scores, StreamHandle, const float*, int64_t, int64_t, int64_t, const float*, int64_t, const int64_t*, int64_t, float,
             float*)
DLAB_LACKING(select_cells, StreamHandle, const float*, int64_t, int64_t, const int64_t*, int64_t, int64_t, int64_t, int32_t*)
DLAB_LACKING(select, StreamHandle, const float*, const float*, int64_t, int64_t, int64_t, int32_t*)
DLAB_LACKING(choose, StreamHandle, const float*, const int32_t*, int64_t, int64_t, int32_t*)
DLAB_LACKING(selector_scores, StreamHandle, const float*, int64_t, int64_t, const int32_t*, int64_t, const float*, const float*,
             const float*, int64_t, float*)
DLAB_LACKING(to_target, StreamHandle, const int32_t*, int64_t, const int64_t*, int64_t, int32_t*)
DLAB_LACKING(expert_weights, StreamHandle, const float*, int64_t, int64_t, const int32_t*, int64_t, bool, float, float*)
DLAB_LACKING(expert_sum, StreamHandle, const float*, const float*, int64_t, int64_t, int64_t, float*)

}  // namespace dlab::gpu
