// Vector types, half and bfloat16.
#pragma once

#include <cstdint>
#include <cstring>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define EMU_VECTORS(type, name, a2, a4)                                                                                    \
  struct name##1 { type x; };                                                                                              \
  struct alignas(a2) name##2 { type x, y; };                                                                               \
  struct name##3 { type x, y, z; };                                                                                        \
  struct alignas(a4) name##4 { type x, y, z, w; };                                                                         \
  inline name##1 make_##name##1(type x) { return {x}; }                                                                    \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                                         \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                                              \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMU_VECTORS(signed char, char, 2, 4)
EMU_VECTORS(unsigned char, uchar, 2, 4)
EMU_VECTORS(short, short, 4, 8)
EMU_VECTORS(unsigned short, ushort, 4, 8)
EMU_VECTORS(int, int, 8, 16)
EMU_VECTORS(unsigned, uint, 8, 16)
EMU_VECTORS(long long, longlong, 16, 16)
EMU_VECTORS(unsigned long long, ulonglong, 16, 16)
EMU_VECTORS(float, float, 8, 16)
EMU_VECTORS(double, double, 16, 16)
#undef EMU_VECTORS

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
#define EMU_FLOAT16(name, pair, from, to)                                                   \
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
  struct alignas(4) pair { name x, y; };                                                    \
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
  inline bool operator!=(name a, name b) { return float(a) != float(b); }                   \
  inline name __hadd(name a, name b) { return a + b; }                                      \
  inline name __hsub(name a, name b) { return a - b; }                                      \
  inline name __hmul(name a, name b) { return a * b; }                                      \
  inline name __hdiv(name a, name b) { return a / b; }                                      \
  inline name __hneg(name a) { return -a; }                                                 \
  inline name __hmax(name a, name b) { return name(__builtin_fmaxf(a, b)); }                \
  inline name __hmin(name a, name b) { return name(__builtin_fminf(a, b)); }                \
  inline name __hfma(name a, name b, name c) { return name(static_cast<float>(double(a) * double(b) + double(c))); } \
  inline bool __hisnan(name a) { return float(a) != float(a); }                             \
  inline pair __hadd2(pair a, pair b) { return {a.x + b.x, a.y + b.y}; }                    \
  inline pair __hmul2(pair a, pair b) { return {a.x * b.x, a.y * b.y}; }                    \
  inline pair __hfma2(pair a, pair b, pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline float __low2float(pair p) { return p.x; }                                          \
  inline float __high2float(pair p) { return p.y; }
EMU_FLOAT16(__half, __half2, half_from, half_to)
EMU_FLOAT16(__nv_bfloat16, __nv_bfloat162, bfloat_from, bfloat_to)
#undef EMU_FLOAT16
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return f; }
inline __half __float2half_rn(float f) { return f; }
inline float2 __half22float2(__half2 p) { return {p.x, p.y}; }
inline __half2 __float22half2_rn(float2 p) { return {p.x, p.y}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(unsigned short bits) {
  __half h;
  h.bits = bits;
  return h;
}
inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float f) { return f; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return f; }
inline float2 __bfloat1622float2(__nv_bfloat162 p) { return {p.x, p.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 p) { return {p.x, p.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 h;
  h.bits = bits;
  return h;
}
