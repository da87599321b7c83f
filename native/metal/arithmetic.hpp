// What both builds of the Metal sources say of themselves.
#pragma once

namespace dlab::gpu {

constexpr const char* kMetalArithmetic =
    "activations=f32,accumulate=f32,order=lanes:32x4,attention_order=blocked:32,fma=1,norm_sum=lanes:256,softmax=online,rope_angle=f64,"
    "rope_table=f32,cells=f32,math_mode=safe";

constexpr const char* kMetalMatrixUnits = "simdgroup";

}  // namespace dlab::gpu
