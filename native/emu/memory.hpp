// The memories of the emulated device: device, pinned host and shared memory, each with guards around every allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "findings.hpp"

namespace emu {

// The history of four bytes: who wrote and who read them last. Threads are counted within their block; a segment is the time between
// two barriers of one block (see Clock); sync counts the __syncwarp of a thread's warp.
struct Cell {
  uint32_t write_segment, read_segment;
  uint32_t write_code, read_code;  // instructions, 0 for a copy or a memset
  uint16_t write_thread, read_thread;
  uint16_t write_sync, read_sync;
  uint8_t write_bytes, read_bytes;  // which of the four
  uint8_t flags;
};

struct Allocation {
  uintptr_t begin = 0;
  size_t bytes = 0;
  Place place;       // of the call that made it
  bool live = false;
};

// A reserved range of addresses that hands out allocations. Every allocation starts on a page of its own and is followed by at least one
// page that belongs to none; freed addresses are not given out again, so that a stale pointer stays wrong.
class Arena {
 public:
  // tracked: with one initialised bit per byte and one Cell per four bytes.
  Arena(size_t bytes, bool tracked);

  // nullptr when the arena is full. Fresh memory is full of 0xff: NaN in every float format, -1 in integers.
  void* allocate(size_t bytes, Place place);
  // False when p is not the start of a live allocation.
  bool release(void* p);

  // Forgets every allocation; the next ones start over at the same addresses.
  void reset();

  bool holds(const void* p) const { return offset(p) < reserved_; }
  // The allocation that p lies in or behind, live or not; nullptr for none.
  const Allocation* find(const void* p) const;
  bool live(const void* p, size_t bytes) const {
    const Allocation* a = find(p);
    return a && a->live && reinterpret_cast<uintptr_t>(p) + bytes <= a->begin + a->bytes;
  }
  size_t live_bytes() const { return live_bytes_; }

  Cell& cell(const void* p) { return cells_[offset(p) >> 2]; }
  void set_initialised(const void* p, size_t bytes, bool value);
  // The first byte of the range that nothing has written, or bytes when there is none.
  size_t first_uninitialised(const void* p, size_t bytes) const;
  bool initialised(const void* p, size_t bytes) const;
  // Copies the initialised bits of a range.
  void copy_initialised(const void* to, const Arena& from_arena, const void* from, size_t bytes);

  uintptr_t base() const { return base_; }

 private:
  size_t offset(const void* p) const { return reinterpret_cast<uintptr_t>(p) - base_; }

  uintptr_t base_;
  size_t reserved_, next_ = 0, live_bytes_ = 0;
  std::vector<Allocation> allocations_;  // the first is a dummy
  uint32_t* owner_;                      // allocation of each page
  uint8_t* written_ = nullptr;           // one bit per byte
  Cell* cells_ = nullptr;
};

constexpr size_t kPage = 4096;

// Made when the library is loaded; read at every access.
extern Arena *device_arena, *pinned_arena, *shared_arena;
inline Arena& device_memory() { return *device_arena; }
inline Arena& pinned_memory() { return *pinned_arena; }
inline Arena& shared_memory() { return *shared_arena; }

// "1024 bytes at +4096 of the 8192 bytes allocated at cuda/x.cu:12"
std::string whereabouts(const Arena& arena, const char* name, const void* p);

// Is p inside the data or code of this shared object (constants, __device__ and __constant__ variables)?
bool in_module(const void* p);
// The offset of a return address in this shared object.
extern uintptr_t module_base;
inline uint32_t code_of(const void* return_address) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(return_address) - module_base); }

}  // namespace emu
