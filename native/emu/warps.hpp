// Threads and warps of the running block: who waits where, and the meetings of lanes in warp operations.
#pragma once

#include <memory>
#include <vector>

#include "engine.hpp"

namespace emu {

enum class State { Ready, AtBarrier, AtWarp, Done };

struct Thread;

// Lanes that meet in one warp operation.
struct Meeting {
  WarpOp op;
  unsigned mask;  // who is called
  Place place;    // of the first to come
  unsigned arrived = 0;
  uint64_t value[kWarp];
  int argument[kWarp];
  int width[kWarp];
};

struct Warp {
  uint16_t sync = 0;   // completed __syncwarp
  unsigned alive = 0;  // lanes that have not returned
  Thread* lanes[kWarp] = {};
  std::vector<Meeting> meetings;
};

struct Thread {
  Fiber fiber;
  unsigned linear = 0;
  Index index;
  Warp* warp = nullptr;
  State state = State::Ready;
  Place place;  // where it waits
  WarpOp op = WarpOp::Sync;
  uint64_t result = 0;

  unsigned lane() const { return linear % kWarp; }
};

// The thread joins a meeting of its warp that has the same mask and operation, or opens it.
void arrive(Thread& t, const Meeting& meeting, uint64_t value, int argument, int width);
// Ends the meetings whose living lanes have all arrived.
void complete_meetings(Warp& warp);
// Lets a thread that waits in a warp operation go on with this result.
void wake(Thread& t, uint64_t result);

struct WaitingGroup {
  std::string threads, what;
  Place place;
  bool one;
};
// Threads that wait, grouped by where.
std::vector<WaitingGroup> waiting_groups(const std::vector<std::unique_ptr<Thread>>& threads);

}  // namespace emu
