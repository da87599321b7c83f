// Compiled once per instruction set; DLAB_KERNELS names the table, DLAB_ISA the set. Nothing else in this file has external linkage,
// so that code for a newer processor never replaces the baseline's.
#include "kernels.hpp"

#include "decode.hpp"
#include "pointwise.hpp"
#include "product.hpp"
#include "reduce.hpp"
#include "sequences.hpp"

namespace dlab {

#ifdef __FP_FAST_FMAF
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

extern const Kernels DLAB_KERNELS = {
    DLAB_ISA, kFused, decode, tile_rows, product, attention, rms_norm, rope, gate, swiglu, add, multiply, softmax, softcap,
    dot, delta_read, delta_step, short_conv, dynamic_conv, mean, weighted_sum, silu, squash, decay, l2_norm, hc_read, hc_write, ple_gate,
    product_of, markov_state, hyperbolic, differences, read_words,
};

}  // namespace dlab
