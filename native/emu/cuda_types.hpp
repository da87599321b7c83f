// Vector types, half and bfloat16.
#pragma once

#include <cstdint>
#include <cstring>

#include "floats.hpp"

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

#define EMU_FLOAT16_INTRINSICS(name, pair)                                                   \
  struct alignas(4) pair { name x, y; };                                                    \
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
EMU_FLOAT16(__half, half_from, half_to)
EMU_FLOAT16(__nv_bfloat16, bfloat_from, bfloat_to)
EMU_FLOAT16_INTRINSICS(__half, __half2)
EMU_FLOAT16_INTRINSICS(__nv_bfloat16, __nv_bfloat162)
#undef EMU_FLOAT16_INTRINSICS
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
