// The device of the shared host code, by the CUDA runtime.
#include "device.cuh"

#include "cpu/apply.hpp"

#ifndef DLAB_SOURCE_HASH
#define DLAB_SOURCE_HASH ""
#endif

namespace dlab {

// Moves without arithmetic are left to the caller: they would go to the device and come back as they were.
std::vector<const Operation*> operation_tables() { return {kTables, kStreams, kSequences, kChoices, kExperts}; }

namespace gpu {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const int32_t code = status == cudaErrorMemoryAllocation ? DLAB_E_NOMEM : DLAB_E_DEVICE;
  fail(code, "%s: %s (%s)", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

namespace backend {

// The emulated runtime names the line that asked for a call.
#ifdef __CUDACC__
#define DLAB_FROM(site)
const char* const name = "cuda";
const uint32_t where = DLAB_CAP_DEVICE;
#else
#define DLAB_FROM(site) , emu::Caller(site.file, site.line)
const char* const name = "cuda-emu";
const uint32_t where = DLAB_CAP_EMULATED;
#endif

const bool heads = true;
const char* const matrix_units = "tensor-core";
const char* const source_hash = DLAB_SOURCE_HASH;
const char* const arithmetic =
    "activations=f32,accumulate=f32,order=lanes:32x4,attention_order=blocked:32,fma=1,norm_sum=f64,softmax=online,rope_angle=f64,"
    "rope_table=f32,cells=f32";

namespace {

cudaEvent_t event_of(EventHandle handle) { return reinterpret_cast<cudaEvent_t>(handle); }

}  // namespace

// Says why there is no device, for a driver that is missing, too old, or has none.
void require_device() {
  int count = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&driver);
  if (status == cudaSuccess && count > 0) return;
  cudaGetLastError();
  if (driver == 0) fail(DLAB_E_NO_DEVICE, "there is no NVIDIA driver; use a machine with a GPU, or the library cuda-emu");
  if (status == cudaErrorInsufficientDriver)
    fail(DLAB_E_NO_DEVICE, "the NVIDIA driver is for CUDA %d.%d, older than this library; update the driver", driver / 1000, driver % 100 / 10);
  fail(DLAB_E_NO_DEVICE, "the driver finds no device (%s)", cudaGetErrorString(status));
}

void* allocate(int64_t bytes, bool pinned, [[maybe_unused]] Site site) {
  void* memory = nullptr;
  const auto size = static_cast<size_t>(bytes);
  if (pinned) DLAB_CUDA(cudaHostAlloc(&memory, size, cudaHostAllocDefault DLAB_FROM(site)));
  else DLAB_CUDA(cudaMalloc(&memory, size DLAB_FROM(site)));
  return memory;
}

void release(void* memory, bool pinned) noexcept {
  if (pinned) cudaFreeHost(memory);
  else cudaFree(memory);
}

bool on_device(const void* p) {
  cudaPointerAttributes attributes{};
  if (!p || cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    cudaGetLastError();  // older runtimes call an unregistered pointer an error
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice;
}

StreamHandle make_stream() {
  cudaStream_t made = nullptr;
  DLAB_CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return reinterpret_cast<StreamHandle>(made);
}

void destroy(StreamHandle stream) noexcept { cudaStreamDestroy(stream_of(stream)); }

void wait(StreamHandle stream, [[maybe_unused]] Site site) { DLAB_CUDA(cudaStreamSynchronize(stream_of(stream) DLAB_FROM(site))); }

EventHandle make_event() {
  cudaEvent_t made = nullptr;
  DLAB_CUDA(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  return reinterpret_cast<EventHandle>(made);
}

void destroy(EventHandle event) noexcept { cudaEventDestroy(event_of(event)); }

void record(EventHandle event, StreamHandle stream, [[maybe_unused]] Site site) {
  DLAB_CUDA(cudaEventRecord(event_of(event), stream_of(stream) DLAB_FROM(site)));
}

void hold(StreamHandle stream, EventHandle event, [[maybe_unused]] Site site) {
  DLAB_CUDA(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0 DLAB_FROM(site)));
}

void wait(EventHandle event, [[maybe_unused]] Site site) { DLAB_CUDA(cudaEventSynchronize(event_of(event) DLAB_FROM(site))); }

void copy(StreamHandle stream, void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows,
          Direction direction, [[maybe_unused]] Site site) {
  const cudaMemcpyKind kind = direction == Direction::Up     ? cudaMemcpyHostToDevice
                              : direction == Direction::Down ? cudaMemcpyDeviceToHost
                                                             : cudaMemcpyDeviceToDevice;
  const auto bytes = static_cast<size_t>(width);
  if (rows == 1) {
    DLAB_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_of(stream) DLAB_FROM(site)));
    return;
  }
  DLAB_CUDA(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch), bytes, static_cast<size_t>(rows), kind,
                              stream_of(stream) DLAB_FROM(site)));
}

}  // namespace backend
}  // namespace gpu
}  // namespace dlab
