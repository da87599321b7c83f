// Checks of every access to the emulated memories: is it inside a live allocation, has the byte been written, is it ordered with the
// accesses of others. Called by instrumented code (hooks.cpp) and by the runtime for copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "memory.hpp"

namespace emu {

// An access of instrumented code, in a kernel or on the host.
void access(const void* p, size_t bytes, bool write, const void* return_address);

// Off: accesses are not looked at, which is several times faster.
extern bool checking;

// A copy or a memset reads or writes device memory: races with other streams, and what has been written. from: host memory when it is
// not device memory.
void copy_reads(const void* p, size_t bytes);
void copy_writes(const void* p, size_t bytes);

// Provided by the runtime.

// Has all work whose first segment is at or before this one been ordered before the running work?
bool ordered_before_running_work(uint32_t segment);
// "kernel scale launched at a.cu:3" of the work that a segment belongs to, and the place of its call.
std::string work_text(uint32_t segment);
Place work_place(uint32_t segment);
// Host code touches pinned memory.
void host_touches_pinned(const void* p, size_t bytes, bool write, uint32_t code);

}  // namespace emu
