// Runs the blocks of a grid: threads as fibers, barriers, warp operations, shared memory. Everything a kernel can call ends here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "findings.hpp"

namespace emu {

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  uint64_t count() const { return static_cast<uint64_t>(x) * y * z; }
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;

enum class WarpOp { Sync, Shuffle, ShuffleUp, ShuffleDown, ShuffleXor, Ballot, All, Any, Add, Min, Max, And, Or, Xor, Match, Exchange };
constexpr size_t kWarpOps = 16;

// A source language: how findings name its things, and how much shared memory a block of it may have.
struct Language {
  const char *block, *barrier, *shared;
  const char* ops[kWarpOps];
  size_t max_shared;
  bool waits_for_returned;  // must a barrier be reached by threads that have returned too?
};
extern const Language kCuda, kMetal;

// One launch: body(closure) is the kernel on its arguments, run once per thread on a copy of the closure.
struct Launch {
  std::string kernel;
  Place place;
  Extent grid, block;
  size_t dynamic_shared = 0;
  void (*body)(const void* closure) = nullptr;
  std::vector<char> closure;
  const Language* language = &kCuda;
};

// Runs every block to its end, one after another. order: 0 takes blocks and threads by number, anything else seeds a shuffle of both.
// False when the kernel was stopped: an access out of bounds, or a synchronisation that can never complete (see findings()).
bool run(const Launch& launch, uint64_t order);

// Inside a kernel.

Index thread_index() __attribute__((const));
Index block_index() __attribute__((const));
Extent block_extent() __attribute__((const));
Extent grid_extent() __attribute__((const));
bool in_kernel();

struct Votes {
  int count;  // threads of the block whose predicate was not 0
  bool all, any;
};
Votes barrier(int predicate, Place place);

// What a lane of an exchange gives, and what it gets: the value of every lane.
struct Exchange {
  uint64_t mine[2], all[kWarp][2];
};
// The lanes of mask meet; returns this lane's result. value: up to 8 bytes, or of an exchange the address of its `Exchange`; argument:
// source lane, distance or lane mask.
uint64_t warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width, Place place);
unsigned active_mask();

// A __shared__ variable: one object per declaration, for all blocks.
struct SharedVariable {
  const char* name;
  const char* file;
  int line;
  void* address = nullptr;
  uint64_t block = 0;  // serial number of the block the address belongs to
};
// Its storage in the running block, full of 0xff until it is written. bytes = 0: the dynamic shared memory of the launch.
void* shared_variable(SharedVariable& variable, size_t bytes);
// The name of the variable at this address, "" for none.
std::string shared_name(const void* p);

// An atomic operation on p is about to happen. False: the access is not allowed and the kernel is being stopped.
void atomic_access(const void* p, size_t bytes, Place place);

// What the race tracking needs to know of the running thread.
struct Now {
  uint16_t thread = 0;   // within the block
  uint16_t sync = 0;     // __syncwarp so far in this thread's warp
};
Now now();
bool on_block_stack(const void* p);
// "thread (3,0,0) of block (0,0,0)"; segment: of the access, see Clock.
std::string thread_text(uint16_t thread, uint32_t segment);
std::string kernel_text();
// That of the running kernel.
const Language& language();
// Ends the kernel: the calling thread never returns.
[[noreturn]] void stop_kernel();

// Time, in segments: each barrier, block, kernel and copy starts a new one.
struct Clock {
  uint32_t segment = 1;      // now
  uint32_t block_first = 1;  // first of the running block
  uint32_t work_first = 1;   // first of the running kernel or copy
};
extern Clock clock;

}  // namespace emu
