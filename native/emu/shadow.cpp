#include "shadow.hpp"

#include <algorithm>

#include "engine.hpp"
#include "work.hpp"

namespace emu {

bool checking = true;

namespace {

constexpr uint16_t kCopy = 0xffff;  // the "thread" of a copy
enum Flag : uint8_t { kWarpRead = 1, kBlockRead = 2, kGridRead = 4, kAtomicWrite = 8 };

struct Access {
  Now who;
  uint32_t code;
  bool write, atomic;
};

// Atomic operations know their line, not their instruction: codes from here on are numbers of known places.
constexpr uint32_t kKnownPlaces = 1u << 31;
EMU_LASTING std::vector<Place> known_places;

uint32_t code_of_place(Place place) {
  const auto same = [&](const Place& p) { return p.file == place.file && p.line == place.line; };
  const auto found = std::find_if(known_places.begin(), known_places.end(), same);
  const auto index = static_cast<uint32_t>(found - known_places.begin());
  if (found == known_places.end()) known_places.push_back(place);
  return kKnownPlaces + index;
}

bool is_shared(const Arena& arena) { return &arena == &shared_memory(); }

// Did the access of `thread` in `segment` happen before this one?
bool ordered(const Arena& arena, uint32_t segment, uint16_t thread, uint16_t sync, const Access& a) {
  if (segment == 0) return true;
  if (segment >= clock.block_first) {
    if (segment < clock.segment || thread == a.who.thread) return true;
    return thread / kWarp == a.who.thread / kWarp && sync != a.who.sync;
  }
  if (is_shared(arena)) return true;  // another block's
  return segment < clock.work_first && ordered_before_running_work(segment);
}

bool readers_ordered(const Arena& arena, const Cell& c, const Access& a) {
  if (c.flags & kGridRead && c.read_segment >= clock.work_first) return false;
  if (c.flags & kBlockRead && c.read_segment == clock.segment) return false;
  if (c.flags & kWarpRead && c.read_segment == clock.segment)
    return c.read_thread / kWarp == a.who.thread / kWarp && c.read_sync != a.who.sync;
  return ordered(arena, c.read_segment, c.read_thread, c.read_sync, a);
}

Place place_of(uint32_t code, uint32_t segment) {
  if (code >= kKnownPlaces) return known_places[code - kKnownPlaces];
  return code ? Place::instruction(code) : work_place(segment);
}

std::string who_text(uint16_t thread, uint32_t segment) {
  if (segment >= clock.work_first && thread != kCopy) return thread_text(thread, segment);
  return work_text(segment);
}

std::string where_text(const Arena& arena, const void* p) {
  const Allocation* a = arena.find(p);
  if (!is_shared(arena)) return whereabouts(arena, "device", p);
  return "byte " + std::to_string(a ? reinterpret_cast<uintptr_t>(p) - a->begin : 0) + " of " + language().shared + " " + shared_name(p);
}

void report_race(const Arena& arena, const void* p, const Access& a, bool with_write, const Cell& c) {
  const uint32_t segment = with_write ? c.write_segment : c.read_segment;
  const Place other = place_of(with_write ? c.write_code : c.read_code, segment);
  const Place mine = place_of(a.code, clock.segment);
  const bool same_block = segment >= clock.block_first && a.who.thread != kCopy;
  const bool same_work = segment >= clock.work_first;
  const std::string me = a.who.thread == kCopy ? work_text(clock.segment) : "kernel " + kernel_text() + ", " + thread_text(a.who.thread, clock.segment);
  report(kind::kRace, {mine, other},
         where_text(arena, p) + ": " + (a.write ? "written" : "read") + " at {0} by " + me + ", " + (with_write ? "written" : "read") +
             " at {1} by " + who_text(with_write ? c.write_thread : c.read_thread, segment) +
             (same_block  ? "; no barrier between them"
              : same_work ? "; blocks of a grid have no order"
                          : "; no event or synchronisation orders the two"));
}

void note_read(const Arena& arena, Cell& c, const Access& a, uint8_t bytes) {
  const bool same_block = c.read_segment >= clock.block_first;
  const bool same_work = is_shared(arena) ? same_block : c.read_segment >= clock.work_first;  // each block has its own shared memory
  const bool other = c.read_thread != a.who.thread;
  if (same_work && !same_block) {
    c.flags |= kGridRead;
    c.read_bytes |= bytes;
    return;
  }
  if (c.flags & kGridRead && same_work) return;
  if (c.read_segment == clock.segment && (other || c.flags & (kWarpRead | kBlockRead))) {
    if (c.read_thread / kWarp != a.who.thread / kWarp) {
      c.flags |= kBlockRead;
      c.read_bytes |= bytes;
      return;
    }
    if (c.flags & kBlockRead) return;
    if (c.read_sync == a.who.sync) {
      c.flags |= kWarpRead;
      c.read_bytes |= bytes;
      return;
    }
  }
  c.flags &= kAtomicWrite;
  c.read_segment = clock.segment;
  c.read_code = a.code;
  c.read_thread = a.who.thread;
  c.read_sync = a.who.sync;
  c.read_bytes = bytes;
}

void note_write(Cell& c, const Access& a, uint8_t bytes) {
  c.write_segment = clock.segment;
  c.write_code = a.code;
  c.write_thread = a.who.thread;
  c.write_sync = a.who.sync;
  c.write_bytes = bytes;
  c.flags = static_cast<uint8_t>(a.atomic ? c.flags | kAtomicWrite : c.flags & ~kAtomicWrite);
}

void check_cell(Arena& arena, const void* p, uint8_t bytes, const Access& a) {
  Cell& c = arena.cell(p);
  const bool both_atomic = a.atomic && c.flags & kAtomicWrite;
  if (c.write_bytes & bytes && !both_atomic && !ordered(arena, c.write_segment, c.write_thread, c.write_sync, a))
    report_race(arena, p, a, true, c);
  if (a.write && c.read_bytes & bytes && !readers_ordered(arena, c, a)) report_race(arena, p, a, false, c);
  if (a.write) note_write(c, a, bytes);
  else note_read(arena, c, a, bytes);
}

void check_range(Arena& arena, const void* p, size_t bytes, const Access& a) {
  const auto first = reinterpret_cast<uintptr_t>(p), end = first + bytes;
  if (bytes == 4 && first % 4 == 0) return check_cell(arena, p, 0xf, a);
  for (uintptr_t at = first & ~uintptr_t{3}; at < end; at += 4) {
    const unsigned low = at < first ? static_cast<unsigned>(first - at) : 0, high = end - at < 4 ? static_cast<unsigned>(end - at) : 4;
    check_cell(arena, reinterpret_cast<const void*>(at), static_cast<uint8_t>((1u << high) - (1u << low)), a);
  }
}

void report_uninitialised(const Arena& arena, const void* p, Place place) {
  report(kind::kUninitialised, {place},
         where_text(arena, p) + " is read at {0} by kernel " + kernel_text() + ", " + thread_text(now().thread, clock.segment) +
             ", but nothing has written it");
}

void out_of_bounds(const Arena& arena, const void* p, size_t bytes, bool write, Place place) {
  report(kind::kBounds, {place},
         "kernel " + kernel_text() + ", " + thread_text(now().thread, clock.segment) + (write ? " writes " : " reads ") + std::to_string(bytes) +
             " bytes at {0}: " + where_text(arena, p));
  stop_kernel();
}

void kernel_access(Arena& arena, const void* p, size_t bytes, const Access& a) {
  const Place place = place_of(a.code, clock.segment);
  if (!arena.live(p, bytes)) out_of_bounds(arena, p, bytes, a.write, place);
  if (!a.write || a.atomic)
    if (!arena.initialised(p, bytes)) report_uninitialised(arena, static_cast<const char*>(p) + arena.first_uninitialised(p, bytes), place);
  if (a.write) arena.set_initialised(p, bytes, true);
  check_range(arena, p, bytes, a);
}

// Neither device nor shared memory: locals, constants and mapped pinned memory are fine, other host memory is not.
void other_access(const void* p, size_t bytes, bool write, uint32_t code) {
  if (in_module(p) || on_block_stack(p)) return;
  if (pinned_memory().live(p, bytes)) {
    if (write) device_wrote_pinned(p, bytes);
    return;
  }
  report(kind::kBounds, {Place::instruction(code)},
         "kernel " + kernel_text() + ", " + thread_text(now().thread, clock.segment) + (write ? " writes " : " reads ") + std::to_string(bytes) +
             " bytes at {0} in memory that is not the device's (a host pointer, or far outside of an allocation)");
  stop_kernel();
}

void host_access(const void* p, size_t bytes, bool write, uint32_t code) {
  if (pinned_memory().holds(p)) return host_touches_pinned(p, bytes, write, code);
  if (device_memory().holds(p))
    report(kind::kBounds, {Place::instruction(code)},
           std::string("host code ") + (write ? "writes " : "reads ") + whereabouts(device_memory(), "device", p) +
               " at {0}; host code cannot touch device memory");
}

Access copy_access(bool write) { return {{kCopy, 0}, 0, write, false}; }

}  // namespace

void access(const void* p, size_t bytes, bool write, const void* return_address) {
  if (!checking || bytes == 0) return;
  if (!in_kernel()) {
    if (pinned_memory().holds(p) || device_memory().holds(p)) host_access(p, bytes, write, code_of(return_address));
    return;
  }
  const uint32_t code = code_of(return_address);
  for (Arena* arena : {&shared_memory(), &device_memory()})
    if (arena->holds(p)) return kernel_access(*arena, p, bytes, {now(), code, write, false});
  other_access(p, bytes, write, code);
}

void atomic_access(const void* p, size_t bytes, Place place) {
  if (!checking) return;
  for (Arena* arena : {&shared_memory(), &device_memory()})
    if (arena->holds(p)) return kernel_access(*arena, p, bytes, {now(), code_of_place(place), true, true});
}

void copy_reads(const void* p, size_t bytes) {
  if (checking) check_range(device_memory(), p, bytes, copy_access(false));
}

void copy_writes(const void* p, size_t bytes) {
  if (checking) check_range(device_memory(), p, bytes, copy_access(true));
}

}  // namespace emu
