// The device as the shared host code sees it: memory, streams and events that free themselves, over the few calls that a backend gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "context.hpp"

namespace dlab::gpu {

// The line of the shared code that asked for something: what an emulated device names in its findings.
struct Site {
  const char* file;
  int line;
  constexpr Site(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
};

// The backend's own objects.
using StreamHandle = struct DeviceStream*;
using EventHandle = struct DeviceEvent*;

enum class Direction { Up, Down, Across };  // host to device, device to host, within the device

// What a backend defines (cuda/device.cu, metal/device.mm), beside the kernels of kernels.hpp and operation_tables() of cpu/apply.hpp. Those that can fail throw Error: NO_DEVICE,
// NOMEM or DEVICE. Streams run their work in order, each for itself; host memory that is not pinned is read before copy() returns, or has been
// written.
namespace backend {

extern const char* const name;        // "cuda", as dlab_info and errors say it
extern const char* const arithmetic;  // of dlab_info
extern const char* const source_hash;  // of dlab_info
extern const uint32_t where;          // DLAB_CAP_DEVICE or DLAB_CAP_EMULATED
extern const char* const matrix_units;  // what products=… calls the device's matrix units; nullptr: this library does not use them
extern const bool heads;              // does it have the kernels of DFlash 2 and DSpark (kernels.hpp)?

// Throws NO_DEVICE with the reason when there is none.
void require_device();

void* allocate(int64_t bytes, bool pinned, Site site);
void release(void* memory, bool pinned) noexcept;
bool on_device(const void* p);

StreamHandle make_stream();
void destroy(StreamHandle) noexcept;
void wait(StreamHandle, Site site);
EventHandle make_event();
void destroy(EventHandle) noexcept;
void record(EventHandle, StreamHandle, Site site);
void hold(StreamHandle, EventHandle, Site site);
void wait(EventHandle, Site site);

// rows of width bytes, each side with its own distance between them
void copy(StreamHandle, void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows, Direction, Site site);

}  // namespace backend

// Values in device memory, or in pinned host memory, which copies do not wait for.
template <class T, bool IsPinned>
class Memory {
 public:
  Memory() = default;
  explicit Memory(int64_t count, Site site = {}) { grow(count, site); }
  ~Memory() { backend::release(data_, IsPinned); }
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }

  T* get() const { return data_; }
  int64_t count() const { return count_; }

  // Room for count values; what it held is lost when it has to move.
  void grow(int64_t count, Site site = {}) {
    if (count <= count_) return;
    backend::release(std::exchange(data_, nullptr), IsPinned);
    count_ = 0;
    data_ = static_cast<T*>(backend::allocate(count * static_cast<int64_t>(sizeof(T)), IsPinned, site));
    count_ = count;
  }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

template <class T>
using Buffer = Memory<T, false>;
template <class T>
using Pinned = Memory<T, true>;

class Stream {
 public:
  Stream() : stream_(backend::make_stream()) {}
  ~Stream() { backend::destroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator StreamHandle() const { return stream_; }
  void wait(Site site = {}) const { backend::wait(stream_, site); }

 private:
  StreamHandle stream_;
};

class Event {
 public:
  Event() : event_(backend::make_event()) {}
  ~Event() { backend::destroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(StreamHandle stream, Site site = {}) const { backend::record(event_, stream, site); }
  // Work issued to the stream from now on comes after what was recorded.
  void hold(StreamHandle stream, Site site = {}) const { backend::hold(stream, event_, site); }
  void wait(Site site = {}) const { backend::wait(event_, site); }

 private:
  EventHandle event_;
};

// Copies in the order of the stream; with pinned host memory they wait for nothing.
inline void upload(StreamHandle stream, void* to, const void* from, int64_t bytes, Site site = {}) {
  if (bytes) backend::copy(stream, to, bytes, from, bytes, bytes, 1, Direction::Up, site);
}
inline void download(StreamHandle stream, void* to, const void* from, int64_t bytes, Site site = {}) {
  if (bytes) backend::copy(stream, to, bytes, from, bytes, bytes, 1, Direction::Down, site);
}
inline void move(StreamHandle stream, void* to, const void* from, int64_t bytes, Site site = {}) {
  if (bytes) backend::copy(stream, to, bytes, from, bytes, bytes, 1, Direction::Across, site);
}

}  // namespace dlab::gpu
