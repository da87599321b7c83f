// Kernels of translated .metal files under their names, and how the host runs one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "language.hpp"
#include "metal_types.hpp"
#include "runtime.hpp"

namespace emu {

// What a parameter of a kernel is bound to: its attribute in the source.
enum class Slot {
  Buffer,
  Threadgroup,
  ThreadInGrid,
  ThreadInThreadgroup,
  ThreadIndexInThreadgroup,
  ThreadIndexInSimdgroup,
  SimdgroupIndexInThreadgroup,
  ThreadgroupInGrid,
  ThreadsPerThreadgroup,
  ThreadgroupsPerGrid,
  ThreadsPerGrid,
  ThreadsPerSimdgroup,
  SimdgroupsPerThreadgroup,
};
struct Parameter {
  Slot slot = Slot::Buffer;
  int index = 0;  // of a buffer or of threadgroup memory
};

constexpr size_t kMetalSlots = 31, kMetalParameters = 64;

// The arguments of a dispatch, as its threads find them: device memory, or bytes that lie behind this struct.
struct Bound {
  struct Memory {
    const void* device;
    size_t offset;  // of the bytes, from the start of this struct; 0: none
  };
  const struct MetalKernel* kernel;
  Memory buffers[kMetalSlots];
  size_t threadgroup[kMetalSlots];  // offsets into the threadgroup's memory

  __attribute__((no_sanitize("thread"))) const void* buffer(int i) const {
    return buffers[i].offset ? reinterpret_cast<const char*>(this) + buffers[i].offset : buffers[i].device;
  }
};

Index builtin(Slot slot);
unsigned linear_index() __attribute__((const));
void* threadgroup_memory(size_t offset);

// What fetches a thread's arguments is no access of the kernel.
#define EMU_UNWATCHED __attribute__((no_sanitize("thread")))

template <class T>
EMU_UNWATCHED inline void fill(T& to, Index v) { to = static_cast<T>(v.x); }
template <class T>
EMU_UNWATCHED inline void fill(metal::vec<T, 2>& to, Index v) { to = {static_cast<T>(v.x), static_cast<T>(v.y)}; }
template <class T>
EMU_UNWATCHED inline void fill(metal::vec<T, 3>& to, Index v) { to = {static_cast<T>(v.x), static_cast<T>(v.y), static_cast<T>(v.z)}; }

template <class P>
EMU_UNWATCHED inline P argument(const Parameter& parameter, const Bound& bound) {
  if constexpr (std::is_pointer_v<P>) {
    if (parameter.slot == Slot::Threadgroup) return static_cast<P>(threadgroup_memory(bound.threadgroup[parameter.index]));
    return static_cast<P>(const_cast<void*>(bound.buffer(parameter.index)));
  } else if constexpr (std::is_reference_v<P>) {
    return *static_cast<std::remove_reference_t<P>*>(const_cast<void*>(bound.buffer(parameter.index)));
  } else {
    P value;
    fill(value, builtin(parameter.slot));
    return value;
  }
}

// One kernel under the name that the host knows it by. Made once per kernel by the translation; without memory of its own elsewhere, since
// its threads read it.
struct MetalKernel {
  const char* name;
  size_t count;
  Parameter parameters[kMetalParameters] = {};
  size_t sizes[kMetalParameters] = {};  // of the values behind reference parameters, else 0
  void (*function)();
  void (*call)(const MetalKernel&, const Bound&);

  template <class... P>
  MetalKernel(const char* called, void (*f)(P...), std::initializer_list<Parameter> attributes)
      : name(called),
        count(sizeof...(P)),
        sizes{(std::is_reference_v<P> ? sizeof(std::remove_reference_t<P>) : size_t{0})...},
        function(reinterpret_cast<void (*)()>(f)),
        call([](const MetalKernel& k, const Bound& b) { k.invoke<P...>(b, std::index_sequence_for<P...>()); }) {
    static_assert(sizeof...(P) <= kMetalParameters, "a kernel has too many parameters");
    size_t i = 0;
    for (const Parameter& p : attributes) parameters[i++] = p;
    enter();
  }

 private:
  template <class... P, size_t... I>
  EMU_UNWATCHED void invoke(const Bound& bound, std::index_sequence<I...>) const {
    reinterpret_cast<void (*)(P...)>(function)(argument<P>(parameters[I], bound)...);
  }
  void enter() const;
};

// One argument of a dispatch, at the buffer index of its place in the list: device memory, or bytes that are copied.
struct MetalArgument {
  const void* device = nullptr;
  const void* bytes = nullptr;
  size_t size = 0;
};

// Runs the kernel of that name over a grid of threadgroups. threadgroup_bytes: the memory behind [[threadgroup(i)]], in order.
Status dispatch(const char* kernel, Extent threadgroups, Extent threads, const std::vector<MetalArgument>& arguments,
                const std::vector<size_t>& threadgroup_bytes, Stream* stream, Place place);

}  // namespace emu
