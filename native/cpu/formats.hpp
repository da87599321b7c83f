// Stored formats: block geometry, and conversions between f32 and the 16-bit floats.
#pragma once

#include <cstdint>
#include <cstring>

#include "dlab.h"

namespace dlab {

struct Format {
  int32_t dtype;
  const char* name;
  int32_t block;  // values per block
  int32_t bytes;  // bytes per block
};

constexpr Format kWeightFormats[] = {
    {DLAB_F32, "F32", 1, 4},     {DLAB_F16, "F16", 1, 2},     {DLAB_BF16, "BF16", 1, 2},     {DLAB_Q8_0, "Q8_0", 32, 34},
    {DLAB_Q4_0, "Q4_0", 32, 18}, {DLAB_Q4_1, "Q4_1", 32, 20}, {DLAB_Q5_0, "Q5_0", 32, 22},   {DLAB_Q4_K, "Q4_K", 256, 144},
    {DLAB_Q5_K, "Q5_K", 256, 176}, {DLAB_Q6_K, "Q6_K", 256, 210},
};

// The format of a dtype that a weight can have, or nullptr.
inline const Format* weight_format(int32_t dtype) {
  for (const Format& format : kWeightFormats)
    if (format.dtype == dtype) return &format;
  return nullptr;
}

// Internal linkage: the kernels are compiled for several instruction sets and must not share code through the linker.
static inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

// IEEE half to f32, exact: the bits in place have an exponent that is 112 too small, for subnormals too; infinity and NaN keep theirs
// at the top. Without branches, so that loops over it vectorise.
static inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t finite = float_to_bits(bits_to_float(magnitude << 13) * 0x1p112f);
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return bits_to_float(finite | special | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

static inline float load_half(const uint8_t* bytes) {
  uint16_t half;
  memcpy(&half, bytes, 2);
  return half_to_float(half);
}

static inline float bfloat_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

// Round to nearest even; a NaN keeps its upper bits and becomes quiet.
static inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Round to nearest even, overflow to infinity; a NaN keeps its upper bits and becomes quiet.
static inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the value in units of 2^-24, rounded by the addition
    const uint32_t shifted = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
    return static_cast<uint16_t>(sign | shifted);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace dlab
