// Device memory, streams and events that free themselves, and the check around every call of the runtime.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "context.hpp"

namespace dlab::cuda {

// Throws Error: NOMEM for memory that is not there, DEVICE for everything else; call: as it is written in the source.
void check(cudaError_t status, const char* call);
#define DLAB_CUDA(call) ::dlab::cuda::check((call), #call)
// After a launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Values in device memory.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t count) { grow(count); }
  ~Buffer() { cudaFree(data_); }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }

  T* get() const { return data_; }
  int64_t count() const { return count_; }

  // Room for count values; what it held is lost when it has to move.
  void grow(int64_t count) {
    if (count <= count_) return;
    cudaFree(data_);
    data_ = nullptr;
    count_ = 0;
    DLAB_CUDA(cudaMalloc(&data_, static_cast<size_t>(count) * sizeof(T)));
    count_ = count;
  }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

// Values in pinned host memory: copies from and to it do not wait.
template <class T>
class Pinned {
 public:
  Pinned() = default;
  ~Pinned() { cudaFreeHost(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  T* get() const { return data_; }
  void grow(int64_t count) {
    if (count <= count_) return;
    cudaFreeHost(data_);
    data_ = nullptr;
    count_ = 0;
    DLAB_CUDA(cudaHostAlloc(&data_, static_cast<size_t>(count) * sizeof(T), cudaHostAllocDefault));
    count_ = count;
  }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

class Stream {
 public:
  Stream() { DLAB_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { DLAB_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { DLAB_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { DLAB_CUDA(cudaEventRecord(event_, stream)); }
  // Work issued to the stream from now on comes after what was recorded.
  void hold(cudaStream_t stream) const { DLAB_CUDA(cudaStreamWaitEvent(stream, event_, 0)); }
  void wait() const { DLAB_CUDA(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

bool on_device(const void* p);

}  // namespace dlab::cuda
