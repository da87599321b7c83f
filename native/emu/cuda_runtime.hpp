// The calls of the CUDA runtime, with the place of the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda_types.hpp"
#include "runtime.hpp"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2, cudaMemoryTypeManaged = 3 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaHostAllocWriteCombined = 4;
constexpr unsigned cudaMemAttachGlobal = 1;

using cudaStream_t = emu::Stream*;
using cudaEvent_t = emu::Event*;

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void *devicePointer, *hostPointer;
};
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock;
};

namespace emu {

struct Caller {
  const char* file;
  int line;
  constexpr Caller(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
  operator Place() const { return Place::at(file, line); }
};

inline cudaError_t cuda(Status s) { return static_cast<cudaError_t>(s); }

}  // namespace emu

inline const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  }
  return "cudaErrorUnknown";
}
inline const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "emulated error";
  }
}
inline cudaError_t cudaGetLastError() { return emu::cuda(emu::last_error(true)); }
inline cudaError_t cudaPeekAtLastError() { return emu::cuda(emu::last_error(false)); }

inline cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulated CUDA device", size_t{64} << 30, 48 * 1024, emu::kCuda.max_shared, 9, 0, 8, 32, static_cast<int>(emu::kMaxThreads)};
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = static_cast<int>(emu::kMaxThreads); break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMultiProcessorCount: *value = 8; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(emu::kCuda.max_shared); break;
  }
  return cudaSuccess;
}
template <class F>
inline cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int) { return cudaSuccess; }

template <class T>
inline cudaError_t cudaMalloc(T** p, size_t n, emu::Caller c = {}) {
  return emu::cuda(emu::allocate(reinterpret_cast<void**>(p), n, false, c));
}
template <class T>
inline cudaError_t cudaMallocAsync(T** p, size_t n, cudaStream_t, emu::Caller c = {}) { return cudaMalloc(p, n, c); }
inline cudaError_t cudaFree(void* p, emu::Caller c = {}) { return emu::cuda(emu::release(p, false, c)); }
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t, emu::Caller c = {}) { return emu::cuda(emu::release(p, false, c)); }
template <class T>
inline cudaError_t cudaHostAlloc(T** p, size_t n, unsigned, emu::Caller c = {}) {
  return emu::cuda(emu::allocate(reinterpret_cast<void**>(p), n, true, c));
}
template <class T>
inline cudaError_t cudaMallocHost(T** p, size_t n, emu::Caller c = {}) { return cudaHostAlloc(p, n, 0, c); }
inline cudaError_t cudaFreeHost(void* p, emu::Caller c = {}) { return emu::cuda(emu::release(p, true, c)); }
template <class T>
inline cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned) { return *device = static_cast<T*>(host), cudaSuccess; }
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  auto* q = const_cast<void*>(p);
  const int kind = emu::memory_kind(p);
  *a = {static_cast<cudaMemoryType>(kind), 0, kind ? q : nullptr, kind == 2 ? nullptr : q};
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = size_t{64} << 30;
  *free = *total - emu::device_bytes_in_use();
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return *s = emu::create_stream(!(flags & cudaStreamNonBlocking)), cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
inline cudaError_t cudaStreamDestroy(cudaStream_t s, emu::Caller c = {}) { return emu::cuda(emu::destroy(s, c)); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t s, emu::Caller c = {}) { return emu::cuda(emu::synchronise(s, c)); }
inline cudaError_t cudaStreamQuery(cudaStream_t s, emu::Caller c = {}) { return emu::cuda(emu::query(s, c)); }
inline cudaError_t cudaDeviceSynchronize(emu::Caller c = {}) { return emu::cuda(emu::synchronise_device(c)); }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return *e = emu::create_event(), cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
inline cudaError_t cudaEventDestroy(cudaEvent_t e, emu::Caller c = {}) { return emu::cuda(emu::destroy(e, c)); }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr, emu::Caller c = {}) { return emu::cuda(emu::record(e, s, c)); }
inline cudaError_t cudaEventSynchronize(cudaEvent_t e, emu::Caller c = {}) { return emu::cuda(emu::synchronise(e, c)); }
inline cudaError_t cudaEventQuery(cudaEvent_t e, emu::Caller c = {}) { return emu::cuda(emu::query(e, c)); }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0.001f, cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned = 0, emu::Caller c = {}) {
  return emu::cuda(emu::wait(s, e, c));
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t s, void (*function)(void*), void* data, emu::Caller c = {}) {
  return emu::cuda(emu::call_host([=] { function(data); }, s, c));
}

inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind, emu::Caller c = {}) {
  const auto k = static_cast<emu::Copy>(kind);
  return emu::cuda(emu::copy(to, from, n, k, nullptr, k != emu::Copy::DeviceToDevice, c));
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t s = nullptr, emu::Caller c = {}) {
  return emu::cuda(emu::copy(to, from, n, static_cast<emu::Copy>(kind), s, false, c));
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                                     cudaMemcpyKind kind, cudaStream_t s = nullptr, emu::Caller c = {}) {
  for (size_t r = 0; r < rows; ++r) {
    auto* t = static_cast<char*>(to) + r * to_pitch;
    const auto* f = static_cast<const char*>(from) + r * from_pitch;
    if (const cudaError_t e = cudaMemcpyAsync(t, f, width, kind, s, c)) return e;
  }
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int value, size_t n, emu::Caller c = {}) { return emu::cuda(emu::fill(to, value, n, nullptr, false, c)); }
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t n, cudaStream_t s = nullptr, emu::Caller c = {}) {
  return emu::cuda(emu::fill(to, value, n, s, false, c));
}
template <class T>
inline cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t n, size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) {
  __builtin_memcpy(reinterpret_cast<char*>(&symbol) + offset, from, n);
  return cudaSuccess;
}
