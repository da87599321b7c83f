#include "engine.hpp"

#include <alloca.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "memory.hpp"
#include "shadow.hpp"
#include "warps.hpp"
#include "work.hpp"

namespace emu {

Clock clock;

const Language kCuda = {"block",
                        "__syncthreads",
                        "__shared__",
                        {"__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync", "__all_sync",
                         "__any_sync", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync",
                         "__reduce_or_sync", "__reduce_xor_sync", "__match_any_sync", "mma"},
                        227 * 1024,
                        false};
const Language kMetal = {"threadgroup",
                         "threadgroup_barrier",
                         "threadgroup",
                         {"simdgroup_barrier", "simd_shuffle", "simd_shuffle_up", "simd_shuffle_down", "simd_shuffle_xor", "simd_ballot",
                          "simd_all", "simd_any", "simd_sum", "simd_min", "simd_max", "simd_and", "simd_or", "simd_xor", "simd_match",
                          "simdgroup_multiply_accumulate"},
                         32 * 1024,
                         true};

namespace {

template <class T>
void shuffle(std::vector<T>& items, uint64_t& state) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next_random(state) % i]);
}

std::string triple(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

struct BlockStart {
  uint32_t segment;
  Index index;
};

// The one kernel that runs, and its running block. A kernel never starts another.
struct Running {
  const Launch* launch = nullptr;
  Index block;
  uint64_t serial = 0;  // of the block, never reused
  uint64_t random = 0;  // state of the shuffle; 0: by number
  bool stopped = false;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<Thread*> ready;
  unsigned alive = 0, at_barrier = 0;
  unsigned votes = 0;  // of those at the barrier
  Place barrier;       // of the first one there
  std::vector<BlockStart> starts;
  std::vector<SharedVariable*> shared;
  size_t shared_bytes = 0;
  void* dynamic = nullptr;
};
EMU_LASTING Running running;

// Initial-exec: read at every access of instrumented code, from any host thread.
thread_local Thread* current __attribute__((tls_model("initial-exec"))) = nullptr;

void make_ready(Thread& t) {
  t.state = State::Ready;
  running.ready.push_back(&t);
}

void report_returned() {
  const size_t all = running.threads.size();
  report(kind::kDivergence, {running.barrier},
         "kernel " + kernel_text() + ": " + std::to_string(all - running.alive) + " of the " + std::to_string(all) + " threads of " +
             language().block + " " + triple(running.block.x, running.block.y, running.block.z) + " have returned without reaching the " +
             language().barrier + " at {0}, where the others wait");
}

void release_barrier() {
  if (language().waits_for_returned && running.alive < running.threads.size()) report_returned();
  const uint64_t votes = running.votes | uint64_t{running.at_barrier} << 32;
  running.at_barrier = 0;
  ++clock.segment;
  for (auto& t : running.threads)
    if (t->state == State::AtBarrier) {
      t->result = votes;
      make_ready(*t);
    }
  running.votes = 0;
}

// A thread has ended: those that waited for it alone go on.
void after_exit(Thread& t) {
  running.alive--;
  t.warp->alive &= ~(1u << t.lane());
  complete_meetings(*t.warp);
  if (running.alive && running.at_barrier == running.alive) release_barrier();
}

void entry() {
  Thread& t = *current;
  t.fiber.entered();
  const Launch& launch = *running.launch;
  const size_t bytes = launch.closure.size();
  char* copy = static_cast<char*>(alloca(bytes + 64));
  copy += -reinterpret_cast<uintptr_t>(copy) & 63;
  memcpy(copy, launch.closure.data(), bytes);
  launch.body(copy);
  t.state = State::Done;
  after_exit(t);
  t.fiber.suspend(true);
  abort();
}

void wait() { current->fiber.suspend(); }

void report_deadlock() {
  std::string text = "kernel " + kernel_text() + ": ";
  std::vector<Place> places;
  for (const auto& group : waiting_groups(running.threads)) {
    const bool first = places.empty();
    text += (first ? "" : "; ") + group.threads + " wait" + (group.one ? "s" : "") + " at " + group.what + " {" +
            std::to_string(places.size()) + "}";
    places.push_back(group.place);
  }
  report(kind::kDivergence, places, text + ": these can never meet");
}

Thread* next_ready() {
  auto& ready = running.ready;
  if (running.random) std::swap(ready.back(), ready[next_random(running.random) % ready.size()]);
  Thread* t = ready.back();
  ready.pop_back();
  return t;
}

void start_block(Index index) {
  const Launch& launch = *running.launch;
  const auto n = static_cast<unsigned>(launch.block.count());
  running.block = index;
  ++running.serial;
  clock.block_first = ++clock.segment;
  running.starts.push_back({clock.segment, index});
  shared_memory().reset();
  running.shared.clear();
  running.shared_bytes = launch.dynamic_shared;
  running.dynamic = launch.dynamic_shared ? shared_memory().allocate(launch.dynamic_shared, launch.place) : nullptr;
  running.warps.assign((n + kWarp - 1) / kWarp, Warp{});
  while (running.threads.size() < n) running.threads.push_back(std::make_unique<Thread>());
  running.threads.resize(n);
  running.ready.clear();
  running.alive = n;
  running.at_barrier = 0;
  running.votes = 0;
  for (unsigned i = n; i-- > 0;) {  // the last one pushed runs first
    Thread& t = *running.threads[i];
    t.linear = i;
    t.index = {i % launch.block.x, i / launch.block.x % launch.block.y, i / (launch.block.x * launch.block.y)};
    t.warp = &running.warps[i / kWarp];
    t.warp->alive |= 1u << t.lane();
    t.warp->lanes[t.lane()] = &t;
    t.fiber.start(entry);
    make_ready(t);
  }
}

bool run_block(Index index) {
  start_block(index);
  while (running.alive && !running.stopped) {
    if (running.ready.empty()) {
      report_deadlock();
      return false;
    }
    current = next_ready();
    current->fiber.resume();
    current = nullptr;
  }
  return !running.stopped;
}

}  // namespace

void wake(Thread& t, uint64_t result) {
  t.result = result;
  if (t.state == State::AtWarp) make_ready(t);
}

bool run(const Launch& launch, uint64_t order) {
  running.launch = &launch;
  running.stopped = false;
  running.starts.clear();
  running.random = order ? order * 0x9E3779B97F4A7C15u | 1 : 0;
  std::vector<uint64_t> blocks(launch.grid.count());
  std::iota(blocks.begin(), blocks.end(), uint64_t{0});
  if (order) shuffle(blocks, running.random);
  bool good = true;
  for (const uint64_t b : blocks) {
    const auto [gx, gy, gz] = launch.grid;
    good = run_block({static_cast<unsigned>(b % gx), static_cast<unsigned>(b / gx % gy), static_cast<unsigned>(b / gx / gy)});
    if (!good) break;
  }
  running.launch = nullptr;
  return good;
}

Index thread_index() { return current->index; }
Index block_index() { return running.block; }
Extent block_extent() { return running.launch->block; }
Extent grid_extent() { return running.launch->grid; }
bool in_kernel() { return current != nullptr; }

Votes barrier(int predicate, Place place) {
  Thread& t = *current;
  if (running.at_barrier == 0) running.barrier = place;
  if (running.barrier.line != place.line || strcmp(running.barrier.file, place.file) != 0)
    report(kind::kDivergence, {place, running.barrier},
           "kernel " + kernel_text() + ": " + thread_text(t.linear, clock.segment) + " meets others at two different barriers, {0} and {1}");
  running.votes += predicate != 0;
  t.place = place;
  t.state = State::AtBarrier;
  if (++running.at_barrier == running.alive) release_barrier();
  wait();
  const auto votes = static_cast<uint32_t>(t.result), met = static_cast<uint32_t>(t.result >> 32);
  return {static_cast<int>(votes), votes == met, votes > 0};
}

uint64_t warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width, Place place) {
  Thread& t = *current;
  t.place = place;
  t.state = State::AtWarp;
  t.op = op;
  arrive(t, {op, mask, place, 0, {}, {}, {}}, value, argument, width);
  wait();
  return t.result;
}

unsigned active_mask() { return current->warp->alive; }

void* shared_variable(SharedVariable& v, size_t bytes) {
  if (!current) return nullptr;
  if (bytes == 0) return running.dynamic;
  if (v.block == running.serial) return v.address;
  running.shared_bytes += bytes;
  if (running.shared_bytes > language().max_shared) {
    report(kind::kApi, {Place::at(v.file, v.line)},
           "kernel " + kernel_text() + ": " + language().shared + " " + v.name + " at {0} brings the block to " + std::to_string(running.shared_bytes) +
               " bytes of shared memory, more than the " + std::to_string(language().max_shared) + " there are");
    stop_kernel();
  }
  v.address = shared_memory().allocate(bytes, Place::at(v.file, v.line));
  v.block = running.serial;
  running.shared.push_back(&v);
  return v.address;
}

std::string shared_name(const void* p) {
  const Allocation* a = shared_memory().find(p);
  for (const SharedVariable* v : running.shared)
    if (a && reinterpret_cast<uintptr_t>(v->address) == a->begin) return v->name;
  return a ? "dynamic shared memory" : "";
}

Now now() { return {static_cast<uint16_t>(current->linear), current->warp->sync}; }

bool on_block_stack(const void* p) {
  if (current->fiber.on_stack(p)) return true;
  return std::any_of(running.threads.begin(), running.threads.end(), [p](const auto& t) { return t->fiber.on_stack(p); });
}

std::string thread_text(uint16_t thread, uint32_t segment) {
  const auto after = std::upper_bound(running.starts.begin(), running.starts.end(), segment,
                                      [](uint32_t s, const BlockStart& b) { return s < b.segment; });
  const Index b = after == running.starts.begin() ? running.block : (after - 1)->index;
  const Extent d = running.launch->block;
  return "thread " + triple(thread % d.x, thread / d.x % d.y, thread / (d.x * d.y)) + " of " + language().block + " " + triple(b.x, b.y, b.z);
}

const Language& language() { return running.launch ? *running.launch->language : kCuda; }

std::string kernel_text() { return running.launch ? running.launch->kernel : "?"; }

void stop_kernel() {
  running.stopped = true;
  current->fiber.suspend();
  abort();
}

}  // namespace emu
