#include "runtime.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "memory.hpp"
#include "shadow.hpp"
#include "work.hpp"

namespace emu {

namespace {

Status last = Status::Success;
uint64_t order_seed = 0;
EMU_LASTING std::set<const void*> handles;  // live streams and events

Status remember(Status status) {
  if (status != Status::Success && status != Status::NotReady) last = status;
  return status;
}

Status done() { return remember(scheduler().failure); }

Status wrong(const std::string& text, Place place, Status status = Status::InvalidValue) {
  report(kind::kApi, {place}, text);
  return remember(status);
}

bool alive(const void* handle) { return !handle || handles.count(handle); }

Arena& arena_of(bool pinned) { return pinned ? pinned_memory() : device_memory(); }

bool is_device(const void* p) { return device_memory().holds(p); }

// Is the range of a copy all right? Host memory that is not pinned cannot be checked.
bool check_operand(const void* p, size_t bytes, bool on_device, const char* role, Place place) {
  if (on_device != is_device(p)) {
    wrong(std::string("the ") + role + " of the copy at {0} is " + (on_device ? "host" : "device") + " memory, against its kind", place);
    return false;
  }
  const Arena& arena = on_device ? device_memory() : pinned_memory();
  if (!arena.holds(p) || arena.live(p, bytes)) return true;
  report(kind::kBounds, {place},
         "the copy of " + std::to_string(bytes) + " bytes at {0} leaves its " + role + ": it starts at " +
             whereabouts(arena, on_device ? "device" : "pinned", p));
  remember(Status::InvalidValue);
  return false;
}

Copy actual(Copy kind, const void* to, const void* from) {
  if (kind != Copy::Default) return kind;
  if (is_device(to)) return is_device(from) ? Copy::DeviceToDevice : Copy::HostToDevice;
  return is_device(from) ? Copy::DeviceToHost : Copy::HostToHost;
}

const char* text_of(Copy kind) {
  static const char* const names[] = {"copy host to host", "copy host to device", "copy device to host", "copy device to device"};
  return names[static_cast<int>(kind)];
}

// What a copy does when it runs.
Status move_bytes(void* to, const void* from, size_t bytes, Copy kind) {
  const bool to_device = kind == Copy::HostToDevice || kind == Copy::DeviceToDevice;
  const bool from_device = kind == Copy::DeviceToHost || kind == Copy::DeviceToDevice;
  if (from_device) copy_reads(from, bytes);
  if (to_device) copy_writes(to, bytes);
  memmove(to, from, bytes);
  if (from_device && to_device) device_memory().copy_initialised(to, device_memory(), from, bytes);
  else if (to_device) device_memory().set_initialised(to, bytes, true);
  else if (pinned_memory().holds(to)) device_wrote_pinned(to, bytes);
  return Status::Success;
}

}  // namespace

bool set_schedule(const char* text) {
  const std::string s = text ? text : "";
  if (s == "eager") scheduler().set(Scheduler::Mode::Eager, 0);
  else if (s == "late") scheduler().set(Scheduler::Mode::Late, 0);
  else if (!s.empty() && s.size() < 19 && s.find_first_not_of("0123456789") == std::string::npos)
    scheduler().set(Scheduler::Mode::Random, strtoull(s.c_str(), nullptr, 10) + 1);
  else return false;
  return true;
}

void set_order(uint64_t seed) { order_seed = seed; }

Status last_error(bool clear) {
  const Status status = last;
  if (clear && scheduler().failure == Status::Success) last = Status::Success;
  return status;
}

Status allocate(void** out, size_t bytes, bool pinned, Place place) {
  if (!out) return wrong("the allocation at {0} has nowhere to go: a null pointer", place);
  *out = nullptr;
  if (bytes == 0) return done();
  *out = arena_of(pinned).allocate(bytes, place);
  return *out ? done() : remember(Status::OutOfMemory);
}

Status release(void* p, bool pinned, Place place) {
  if (!p) return done();
  synchronise_device(place);
  if (!arena_of(pinned).release(p))
    return wrong(std::string("{0} frees ") + whereabouts(arena_of(pinned), pinned ? "pinned" : "device", p) +
                     ", which is not the start of a live allocation",
                 place);
  return done();
}

int memory_kind(const void* p) { return is_device(p) ? 2 : pinned_memory().holds(p) ? 1 : 0; }
size_t device_bytes_in_use() { return device_memory().live_bytes(); }

Stream* create_stream(bool blocking) {
  Stream* s = scheduler().create(blocking);
  handles.insert(s);
  return s;
}

Status destroy(Stream* s, Place place) {
  if (!s || !handles.erase(s)) return wrong("{0} destroys a stream that does not exist", place, Status::InvalidHandle);
  return done();
}

Event* create_event() {
  auto* e = new Event;
  handles.insert(e);
  return e;
}

Status destroy(Event* e, Place place) {
  if (!e || !handles.erase(e)) return wrong("{0} destroys an event that does not exist", place, Status::InvalidHandle);
  delete e;
  return done();
}

Status record(Event* e, Stream* s, Place place) {
  if (!e || !alive(e) || !alive(s)) return wrong("{0} records an event or stream that does not exist", place, Status::InvalidHandle);
  e->recorded = scheduler().all_of(scheduler().stream(s));
  scheduler().tick();
  return done();
}

Status wait(Stream* s, Event* e, Place place) {
  if (!e || !alive(e) || !alive(s)) return wrong("{0} waits for an event or in a stream that does not exist", place, Status::InvalidHandle);
  scheduler().stream(s).next.join(e->recorded);
  scheduler().tick();
  return done();
}

namespace {

// Asking is a moment that passes: work goes on, or a loop that asks would never end.
Status ask(const Knowledge& target) {
  scheduler().tick();
  if (scheduler().ended(target)) {
    scheduler().run_until(target);
    return done();
  }
  scheduler().step(target);
  return Status::NotReady;
}

}  // namespace

Status query(Event* e, Place place) {
  if (!e || !alive(e)) return wrong("{0} asks for an event that does not exist", place, Status::InvalidHandle);
  return ask(e->recorded);
}

Status query(Stream* s, Place place) {
  if (!alive(s)) return wrong("{0} asks for a stream that does not exist", place, Status::InvalidHandle);
  return ask(scheduler().all_of(scheduler().stream(s)));
}

Status synchronise(Stream* s, Place place) {
  if (!alive(s)) return wrong("{0} waits for a stream that does not exist", place, Status::InvalidHandle);
  scheduler().run_until(scheduler().all_of(scheduler().stream(s)));
  return done();
}

Status synchronise(Event* e, Place place) {
  if (!e || !alive(e)) return wrong("{0} waits for an event that does not exist", place, Status::InvalidHandle);
  scheduler().run_until(e->recorded);
  return done();
}

Status synchronise_device(Place) {
  scheduler().run_until(scheduler().everything());
  return done();
}

Status copy(void* to, const void* from, size_t bytes, Copy kind, Stream* handle, bool blocking, Place place) {
  if (!alive(handle)) return wrong("{0} copies in a stream that does not exist", place, Status::InvalidHandle);
  if (bytes == 0) return done();
  kind = actual(kind, to, from);
  const bool to_device = kind == Copy::HostToDevice || kind == Copy::DeviceToDevice;
  const bool from_device = kind == Copy::DeviceToHost || kind == Copy::DeviceToDevice;
  if (!check_operand(to, bytes, to_device, "destination", place) || !check_operand(from, bytes, from_device, "source", place))
    return last;
  Stream& stream = scheduler().stream(handle);
  Work work{0, 0, {}, text_of(kind), place, {}};
  const bool pinned_source = !from_device && pinned_memory().holds(from), pinned_target = !to_device && pinned_memory().holds(to);
  if (!from_device && !pinned_source) {  // pageable memory is read at the call
    const auto* begin = static_cast<const char*>(from);
    work.run = [to, kind, held = std::make_shared<std::vector<char>>(begin, begin + bytes)] {
      return move_bytes(to, held->data(), held->size(), kind);
    };
  } else {
    work.run = [=] { return move_bytes(to, from, bytes, kind); };
  }
  scheduler().issue(stream, std::move(work), [&](const Work& issued) {
    if (pinned_target && !blocking) {
      if (!pending_source(to, bytes)) memset(to, 0xff, bytes);  // what is there now is as good as gone
      note_pinned_copy(issued, to, bytes, false);
    }
    if (pinned_source && !blocking) note_pinned_copy(issued, from, bytes, true);
  });
  // A copy to pageable memory waits for itself.
  const bool waits = blocking || (!to_device && !pinned_target);
  return waits ? synchronise(handle, place) : done();
}

Status fill(void* to, int value, size_t bytes, Stream* handle, bool blocking, Place place) {
  if (!alive(handle)) return wrong("{0} fills in a stream that does not exist", place, Status::InvalidHandle);
  if (bytes == 0) return done();
  if (!check_operand(to, bytes, true, "destination", place)) return last;
  scheduler().issue(scheduler().stream(handle), {0, 0, {}, "memset", place, [=] {
                      copy_writes(to, bytes);
                      memset(to, value, bytes);
                      device_memory().set_initialised(to, bytes, true);
                      return Status::Success;
                    }});
  return blocking ? synchronise(handle, place) : done();
}

Status call_host(std::function<void()> function, Stream* handle, Place place) {
  if (!alive(handle)) return wrong("{0} uses a stream that does not exist", place, Status::InvalidHandle);
  scheduler().issue(scheduler().stream(handle), {0, 0, {}, "host function", place, [function = std::move(function)] {
                      function();
                      return Status::Success;
                    }});
  return done();
}

Status launch(Launch l, Stream* handle) {
  if (!alive(handle)) return wrong("{0} launches in a stream that does not exist", l.place, Status::InvalidHandle);
  const auto [gx, gy, gz] = l.grid;
  const auto [bx, by, bz] = l.block;
  const bool fits = bx && by && bz && l.block.count() <= kMaxThreads && bz <= 64 && gx && gy && gz && gx < 1u << 31 && gy < 65536 &&
                    gz < 65536 && l.dynamic_shared <= l.language->max_shared;
  if (!fits) {
    const auto triple = [](Extent e) { return "(" + std::to_string(e.x) + "," + std::to_string(e.y) + "," + std::to_string(e.z) + ")"; };
    return wrong("kernel " + l.kernel + " launched at {0} with grid " + triple(l.grid) + ", block " + triple(l.block) + " and " +
                     std::to_string(l.dynamic_shared) + " bytes of shared memory: outside of what a device takes",
                 l.place);
  }
  Work work{0, 0, {}, "kernel " + l.kernel, l.place, {}};
  work.run = [held = std::make_shared<Launch>(std::move(l)), seed = order_seed] {
    return run(*held, seed) ? Status::Success : Status::LaunchFailure;
  };
  scheduler().issue(scheduler().stream(handle), std::move(work));
  return done();
}

}  // namespace emu
