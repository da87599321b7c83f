// The device of the shared host code and the dispatch of Metal kernels, on the emulator: what device.mm is on a Mac.
#include "arithmetic.hpp"
#include "dispatch.hpp"
#include "emu/metal_kernel.hpp"
#include "emu/runtime.hpp"

#ifndef DLAB_SOURCE_HASH
#define DLAB_SOURCE_HASH ""
#endif

namespace dlab::gpu {

namespace {

emu::Place place_of(Site site) { return emu::Place::at(site.file, site.line); }
emu::Stream* stream_of(StreamHandle handle) { return reinterpret_cast<emu::Stream*>(handle); }
emu::Event* event_of(EventHandle handle) { return reinterpret_cast<emu::Event*>(handle); }

void check(emu::Status status, const char* what) {
  if (status == emu::Status::Success) return;
  const int32_t code = status == emu::Status::OutOfMemory ? DLAB_E_NOMEM : DLAB_E_DEVICE;
  fail(code, "%s: the emulated device refuses (status %d)", what, static_cast<int>(status));
}

emu::Extent extent(Threads t) { return {static_cast<unsigned>(t.x), static_cast<unsigned>(t.y), static_cast<unsigned>(t.z)}; }

}  // namespace

namespace backend {

const char* const name = "metal-emu";
const char* const arithmetic = kMetalArithmetic;
const char* const matrix_units = kMetalMatrixUnits;
const char* const source_hash = DLAB_SOURCE_HASH;
const uint32_t where = DLAB_CAP_EMULATED;

void require_device() {}

void* allocate(int64_t bytes, bool pinned, Site site) {
  void* memory = nullptr;
  check(emu::allocate(&memory, static_cast<size_t>(bytes), pinned, place_of(site)), "allocation");
  return memory;
}

void release(void* memory, bool pinned) noexcept { emu::release(memory, pinned, place_of(Site())); }
bool on_device(const void* p) { return emu::memory_kind(p) == 2; }

StreamHandle make_stream() { return reinterpret_cast<StreamHandle>(emu::create_stream(false)); }
void destroy(StreamHandle stream) noexcept { emu::destroy(stream_of(stream), place_of(Site())); }
void wait(StreamHandle stream, Site site) { check(emu::synchronise(stream_of(stream), place_of(site)), "wait"); }

EventHandle make_event() { return reinterpret_cast<EventHandle>(emu::create_event()); }
void destroy(EventHandle event) noexcept { emu::destroy(event_of(event), place_of(Site())); }
void record(EventHandle event, StreamHandle stream, Site site) { check(emu::record(event_of(event), stream_of(stream), place_of(site)), "event"); }
void hold(StreamHandle stream, EventHandle event, Site site) { check(emu::wait(stream_of(stream), event_of(event), place_of(site)), "event"); }
void wait(EventHandle event, Site site) { check(emu::synchronise(event_of(event), place_of(site)), "wait"); }

void copy(StreamHandle stream, void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows,
          Direction direction, Site site) {
  if (direction == Direction::Across) return copy_on_device(stream, to, to_pitch, from, from_pitch, width, rows, site);
  const auto kind = direction == Direction::Up ? emu::Copy::HostToDevice : emu::Copy::DeviceToHost;
  for (int64_t r = 0; r < rows; ++r) {
    auto* row = static_cast<char*>(to) + r * to_pitch;
    const auto* source = static_cast<const char*>(from) + r * from_pitch;
    check(emu::copy(row, source, static_cast<size_t>(width), kind, stream_of(stream), false, place_of(site)), "copy");
  }
}

}  // namespace backend

void dispatch(StreamHandle stream, const char* kernel, Threads threadgroups, int64_t threads, const std::vector<Argument>& arguments,
              Site site) {
  std::vector<emu::MetalArgument> bound;
  for (const Argument& a : arguments) bound.push_back({a.device, a.bytes, a.size});
  check(emu::dispatch(kernel, extent(threadgroups), extent({threads}), bound, {}, stream_of(stream), place_of(site)), kernel);
}

}  // namespace dlab::gpu
