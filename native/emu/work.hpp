// Work on streams and the order between pieces of it, as vector clocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "findings.hpp"
#include "runtime.hpp"

namespace emu {

// How many pieces of work of each stream have certainly ended. Streams are numbered in order of creation.
class Knowledge {
 public:
  uint64_t of(size_t stream) const { return stream < ended_.size() ? ended_[stream] : 0; }
  void raise(size_t stream, uint64_t ended);
  void join(const Knowledge& other);
  size_t streams() const { return ended_.size(); }

 private:
  std::vector<uint64_t> ended_;
};

// A piece of work: a kernel, a copy, a memset or a host function.
struct Work {
  size_t stream;
  uint64_t number;   // 1, 2, … within its stream
  Knowledge after;   // what must have ended before it may run
  std::string text;  // "kernel scale"
  Place place;
  std::function<Status()> run;
};

struct Event {
  Knowledge recorded;
  bool alive = true;
};

struct Stream {
  size_t index;
  bool blocking;
  bool alive = true;
  uint64_t issued = 0, ended = 0;
  Knowledge next;  // what the next piece of work comes after
  std::deque<Work> queue;
};

// Streams, what the host knows to have ended, and the schedule.
class Scheduler {
 public:
  enum class Mode { Eager, Late, Random };

  Stream& stream(Stream* handle) { return handle ? *handle : *streams_[0]; }
  Stream* create(bool blocking);
  // issued, if given, sees the work with its number before anything can run.
  void issue(Stream& stream, Work work, const std::function<void(const Work&)>& issued = {});
  // Everything issued to the stream so far (all streams for the legacy default one).
  Knowledge all_of(const Stream& stream) const;
  Knowledge everything() const;
  bool ended(const Knowledge& target) const;
  // Runs what the target needs; afterwards the host knows it.
  void run_until(const Knowledge& target);
  // Runs one piece of work that the target needs, or may need.
  void step(const Knowledge& target);
  // Runs what the schedule wants to run now.
  void tick();

  const Knowledge& host() const { return host_; }
  void host_learns(const Knowledge& k) { host_.join(k); }
  void set(Mode mode, uint64_t seed);
  bool before_running(size_t stream, uint64_t number) const;
  const Work* running() const { return running_; }

  Status failure = Status::Success;  // sticky, as a device's

  Scheduler();

 private:
  bool may_run(const Stream& s) const;
  void run_front(Stream& s);
  Stream* choose(const Knowledge* target);

  std::vector<std::unique_ptr<Stream>> streams_;
  Knowledge host_;
  Mode mode_ = Mode::Eager;
  uint64_t random_ = 1;
  const Work* running_ = nullptr;
};

Scheduler& scheduler();
// A pseudorandom number that follows from the state.
uint64_t next_random(uint64_t& state);

// Copies between pinned memory and the device that the host has not waited for.
void note_pinned_copy(const Work& work, const void* host, size_t bytes, bool host_is_source);
// Is this memory the source of a pending copy?
bool pending_source(const void* p, size_t bytes);
// To call after the host has learned something: judges the copies that are now known to have ended.
void settle_pinned_copies();
void check_pinned_source(size_t stream, uint64_t number);
// The device has written pinned memory: what happens to these bytes is no longer the host's doing.
void device_wrote_pinned(const void* p, size_t bytes);

}  // namespace emu
