// What every source language on the emulator needs, and host code compiled beside kernels: places, values as bits, checked copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "findings.hpp"

namespace emu {

// A place of the caller, as the last argument of everything that can fail.
struct Here {
  const char* file;
  int line;
  constexpr Here(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
  Place place() const { return Place::at(file, line); }
};

template <class T>
inline uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "warp operations take values of up to 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
inline T from_bits(uint64_t bits) {
  T value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emu

// Copies that the compiler leaves as calls are accesses too.
namespace emu {
void* copy_bytes(void* to, const void* from, size_t bytes);
void* fill_bytes(void* to, int value, size_t bytes);
}  // namespace emu
__attribute__((always_inline)) inline void* emu_memcpy(void* to, const void* from, size_t bytes) {
  if (__builtin_constant_p(bytes) && bytes <= 16) return __builtin_memcpy(to, from, bytes);
  return emu::copy_bytes(to, from, bytes);
}
__attribute__((always_inline)) inline void* emu_memset(void* to, int value, size_t bytes) { return emu::fill_bytes(to, value, bytes); }
namespace std {
using ::emu_memcpy;
using ::emu_memset;
}  // namespace std
#define memcpy emu_memcpy
#define memmove emu_memcpy
#define memset emu_memset
