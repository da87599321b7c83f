// One kernel of the .metal sources on a stream: by Metal (device.mm), or on the emulator (emulated.cpp).
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/device.hpp"

namespace dlab::gpu {

struct Threads {
  int64_t x = 1, y = 1, z = 1;
};

// What is bound to a kernel's buffer index, which is its place in the list: device memory, or the bytes of a value.
struct Argument {
  const void* device;
  const void* bytes;
  size_t size;
};
inline Argument memory(const void* device) { return {device, nullptr, 0}; }
// Memory that may be missing: the kernel knows by its numbers and does not look at what is bound in its place.
inline Argument memory_or(const void* device, const void* instead) { return memory(device ? device : instead); }
template <class T>
Argument value(const T& v) {
  return {nullptr, &v, sizeof v};
}

void dispatch(StreamHandle stream, const char* kernel, Threads threadgroups, int64_t threads, const std::vector<Argument>& arguments,
              Site site = {});

// A copy within the device.
void copy_on_device(StreamHandle stream, void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows,
                    Site site);

}  // namespace dlab::gpu
