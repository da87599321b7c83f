// 16-bit floats on the host: conversions, and a type that computes in float and rounds after every operation.
#pragma once

#include <cstdint>

namespace emu {

inline uint32_t float_bits(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}

inline float bits_float(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

// Round to nearest even; NaN stays NaN.
inline uint16_t half_from(float value) {
  const uint32_t bits = float_bits(value), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u)  // subnormal: adding 0.5 leaves units of 2^-24, rounded by the addition
    return static_cast<uint16_t>(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u));
  return static_cast<uint16_t>(sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13));
}

inline float half_to(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));
}

inline uint16_t bfloat_from(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float bfloat_to(uint16_t bits) { return bits_float(static_cast<uint32_t>(bits) << 16); }

}  // namespace emu

// A 16-bit float: arithmetic in float, rounded once per operation, which is what the 16-bit instructions give.
#define EMU_FLOAT16(name, from, to)                                                         \
  struct name {                                                                             \
    uint16_t bits;                                                                          \
    name() = default;                                                                       \
    name(float f) : bits(emu::from(f)) {}                                                   \
    name(double d) : name(static_cast<float>(d)) {}                                         \
    name(int i) : name(static_cast<float>(i)) {}                                            \
    operator float() const { return emu::to(bits); }                                        \
    name& operator+=(name o) { return *this = name(float(*this) + float(o)); }              \
    name& operator-=(name o) { return *this = name(float(*this) - float(o)); }              \
    name& operator*=(name o) { return *this = name(float(*this) * float(o)); }              \
    name& operator/=(name o) { return *this = name(float(*this) / float(o)); }              \
  };                                                                                        \
  inline name operator+(name a, name b) { return a += b; }                                  \
  inline name operator-(name a, name b) { return a -= b; }                                  \
  inline name operator*(name a, name b) { return a *= b; }                                  \
  inline name operator/(name a, name b) { return a /= b; }                                  \
  inline name operator-(name a) { return name(-float(a)); }                                 \
  inline bool operator<(name a, name b) { return float(a) < float(b); }                     \
  inline bool operator>(name a, name b) { return float(a) > float(b); }                     \
  inline bool operator<=(name a, name b) { return float(a) <= float(b); }                   \
  inline bool operator>=(name a, name b) { return float(a) >= float(b); }                   \
  inline bool operator==(name a, name b) { return float(a) == float(b); }                   \
  inline bool operator!=(name a, name b) { return float(a) != float(b); }
