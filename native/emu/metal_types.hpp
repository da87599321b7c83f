// Types of the Metal Shading Language: scalars, half, bfloat, vectors of two to four, and conversions of bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "floats.hpp"

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
EMU_FLOAT16(half, half_from, half_to)
EMU_FLOAT16(bfloat, bfloat_from, bfloat_to)

namespace metal {

// Components by name or by number; no swizzles. Three take the room of four.
template <class T, int N>
struct vec;

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  explicit vec(T a) : x(a), y(a) {}
  vec(T a, T b) : x(a), y(b) {}
  template <class U>
  explicit vec(const vec<U, 2>& o) : x(static_cast<T>(o.x)), y(static_cast<T>(o.y)) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  explicit vec(T a) : x(a), y(a), z(a) {}
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
  template <class U>
  explicit vec(const vec<U, 3>& o) : x(static_cast<T>(o.x)), y(static_cast<T>(o.y)), z(static_cast<T>(o.z)) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  explicit vec(T a) : x(a), y(a), z(a), w(a) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  template <class U>
  explicit vec(const vec<U, 4>& o)
      : x(static_cast<T>(o.x)), y(static_cast<T>(o.y)), z(static_cast<T>(o.z)), w(static_cast<T>(o.w)) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

#define EMU_VECTOR_OPERATOR(op)                                                             \
  template <class T, int N>                                                                 \
  inline vec<T, N> operator op(vec<T, N> a, const vec<T, N>& b) {                           \
    for (int i = 0; i < N; ++i) a[i] = static_cast<T>(a[i] op b[i]);                        \
    return a;                                                                               \
  }                                                                                         \
  template <class T, int N>                                                                 \
  inline vec<T, N> operator op(const vec<T, N>& a, std::common_type_t<T> b) {               \
    return a op vec<T, N>(b);                                                               \
  }                                                                                         \
  template <class T, int N>                                                                 \
  inline vec<T, N> operator op(std::common_type_t<T> a, const vec<T, N>& b) {               \
    return vec<T, N>(a) op b;                                                               \
  }                                                                                         \
  template <class T, int N, class B>                                                        \
  inline vec<T, N>& operator op##=(vec<T, N>& a, const B& b) {                              \
    return a = a op b;                                                                      \
  }
EMU_VECTOR_OPERATOR(+)
EMU_VECTOR_OPERATOR(-)
EMU_VECTOR_OPERATOR(*)
EMU_VECTOR_OPERATOR(/)
#undef EMU_VECTOR_OPERATOR

#define EMU_VECTORS(type) using type##2 = vec<type, 2>; using type##3 = vec<type, 3>; using type##4 = vec<type, 4>;
EMU_VECTORS(char)
EMU_VECTORS(uchar)
EMU_VECTORS(short)
EMU_VECTORS(ushort)
EMU_VECTORS(int)
EMU_VECTORS(uint)
EMU_VECTORS(long)
EMU_VECTORS(ulong)
EMU_VECTORS(half)
EMU_VECTORS(bfloat)
EMU_VECTORS(float)
#undef EMU_VECTORS

template <class To, class From>
inline To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: two types of one size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

template <class T, int N>
inline T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace metal

using metal::as_type;
