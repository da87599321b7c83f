// The emulated CUDA runtime: streams, events, memory and copies whose work runs when the schedule says so, in any order that is legal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "engine.hpp"

namespace emu {

enum class Status {
  Success = 0,
  InvalidValue = 1,
  OutOfMemory = 2,
  InvalidHandle = 400,
  NotReady = 600,
  IllegalAddress = 700,
  LaunchFailure = 719,
};

enum class Copy { HostToHost = 0, HostToDevice = 1, DeviceToHost = 2, DeviceToDevice = 3, Default = 4 };

struct Stream;
struct Event;

// "eager": work runs as soon as it may. "late": nothing runs before somebody waits for it. A number: a seeded legal order between the two.
// False when the text is none of these.
bool set_schedule(const char* text);
// 0: blocks and threads by number; else the seed of a shuffle.
void set_order(uint64_t seed);

Status last_error(bool clear);

Status allocate(void** out, size_t bytes, bool pinned, Place place);
Status release(void* p, bool pinned, Place place);
// 0 unregistered host memory, 1 pinned host memory, 2 device memory
int memory_kind(const void* p);
size_t device_bytes_in_use();

// nullptr is the legacy default stream.
Stream* create_stream(bool blocking);
Status destroy(Stream* stream, Place place);
Event* create_event();
Status destroy(Event* event, Place place);
Status record(Event* event, Stream* stream, Place place);
Status wait(Stream* stream, Event* event, Place place);
Status query(Event* event, Place place);
Status query(Stream* stream, Place place);
Status synchronise(Stream* stream, Place place);
Status synchronise(Event* event, Place place);
Status synchronise_device(Place place);

Status copy(void* to, const void* from, size_t bytes, Copy kind, Stream* stream, bool blocking, Place place);
Status fill(void* to, int value, size_t bytes, Stream* stream, bool blocking, Place place);
Status call_host(std::function<void()> function, Stream* stream, Place place);
Status launch(Launch launch, Stream* stream);

}  // namespace emu
