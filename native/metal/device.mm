// The device of the shared host code and the dispatch of Metal kernels, by the Metal framework.
//
// All memory is shared between processor and device, so an address is the device's and the host's alike, and says which buffer it is of.
// Work of a stream goes into one serial encoder after another; nothing runs before it is committed: by an event, or by who waits.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "arithmetic.hpp"
#include "dispatch.hpp"
#include "sources.hpp"

#ifndef DLAB_SOURCE_HASH
#define DLAB_SOURCE_HASH ""
#endif

namespace dlab::gpu {

struct DeviceStream {
  id<MTLCommandQueue> queue;
  id<MTLCommandBuffer> open;  // not committed yet; nil: none
  id<MTLComputeCommandEncoder> encoder;
  std::vector<id<MTLCommandBuffer>> running;
};

struct DeviceEvent {
  id<MTLSharedEvent> event;
  uint64_t recorded = 0;  // the last value signalled; 0: never
  id<MTLCommandBuffer> signals;
};

namespace {

std::string text_of(NSError* error) { return error ? std::string([[error localizedDescription] UTF8String]) : std::string("unknown"); }

// The one device, its compiled kernels, and every buffer by the address of its contents.
struct Device {
  struct Allocation {
    id<MTLBuffer> buffer;
    bool pinned;
  };

  std::mutex mutex;
  id<MTLDevice> device;
  std::vector<id<MTLLibrary>> libraries;
  std::map<std::string, id<MTLComputePipelineState>> pipelines;
  std::map<uintptr_t, Allocation> allocations;

  // nullptr for memory that is none of ours.
  const Allocation* find(const void* p, size_t* offset) {
    const auto address = reinterpret_cast<uintptr_t>(p);
    const auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return nullptr;
    const auto& [begin, allocation] = *std::prev(after);
    *offset = address - begin;
    return *offset < [allocation.buffer length] ? &allocation : nullptr;
  }
};

Device& device() {
  static auto* the = new Device;
  return *the;
}

bool is_ours(const void* p, bool pinned) {
  const std::lock_guard<std::mutex> lock(device().mutex);
  size_t offset = 0;
  const Device::Allocation* found = device().find(p, &offset);
  return found && found->pinned == pinned;
}

MTLCompileOptions* compile_options() {
  MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
  options.languageVersion = MTLLanguageVersion3_0;
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
  if (@available(macOS 15.0, *)) {
    options.mathMode = MTLMathModeSafe;
    return options;
  }
#endif
  options.fastMathEnabled = NO;
  return options;
}

void compile(Device& d) {
  for (int i = 0; i < kSourceCount; ++i) {
    NSError* error = nil;
    id<MTLLibrary> made = [d.device newLibraryWithSource:[NSString stringWithUTF8String:kSources[i].text]
                                                 options:compile_options()
                                                   error:&error];
    if (!made) fail(DLAB_E_DEVICE, "%s does not compile: %s", kSources[i].name, text_of(error).c_str());
    d.libraries.push_back(made);
  }
}

id<MTLComputePipelineState> pipeline(const char* kernel) {
  Device& d = device();
  const std::lock_guard<std::mutex> lock(d.mutex);
  auto& known = d.pipelines[kernel];
  if (known) return known;
  for (id<MTLLibrary> library : d.libraries) {
    id<MTLFunction> function = [library newFunctionWithName:[NSString stringWithUTF8String:kernel]];
    if (!function) continue;
    NSError* error = nil;
    known = [d.device newComputePipelineStateWithFunction:function error:&error];
    if (!known) fail(DLAB_E_DEVICE, "kernel %s: %s", kernel, text_of(error).c_str());
    if ([known threadExecutionWidth] != 32)
      fail(DLAB_E_UNSUPPORTED, "kernel %s: SIMD groups of %lu threads, expected 32", kernel, (unsigned long)[known threadExecutionWidth]);
    return known;
  }
  fail(DLAB_E_INTERNAL, "kernel %s is in no source", kernel);
}

id<MTLCommandBuffer> open_buffer(DeviceStream& s) {
  if (!s.open) s.open = [s.queue commandBuffer];
  if (!s.open) fail(DLAB_E_DEVICE, "Metal gives no command buffer");
  return s.open;
}

id<MTLComputeCommandEncoder> open_encoder(DeviceStream& s) {
  if (!s.encoder) s.encoder = [open_buffer(s) computeCommandEncoder];
  if (!s.encoder) fail(DLAB_E_DEVICE, "Metal gives no command encoder");
  return s.encoder;
}

void end_encoder(DeviceStream& s) {
  [s.encoder endEncoding];
  s.encoder = nil;
}

void commit(DeviceStream& s) {
  end_encoder(s);
  if (!s.open) return;
  [s.open commit];
  s.running.push_back(s.open);
  s.open = nil;
}

void wait_for(id<MTLCommandBuffer> buffer) {
  [buffer waitUntilCompleted];
  if ([buffer status] == MTLCommandBufferStatusError) fail(DLAB_E_DEVICE, "Metal: %s", text_of([buffer error]).c_str());
}

void bind(id<MTLComputeCommandEncoder> encoder, const Argument& argument, NSUInteger index) {
  if (argument.bytes) {
    [encoder setBytes:argument.bytes length:argument.size atIndex:index];
    return;
  }
  const std::lock_guard<std::mutex> lock(device().mutex);
  size_t offset = 0;
  const Device::Allocation* found = device().find(argument.device, &offset);
  if (!found) fail(DLAB_E_INTERNAL, "argument %lu is not in the device's memory", (unsigned long)index);
  [encoder setBuffer:found->buffer offset:offset atIndex:index];
}

// Rows between host memory and dense memory of ours.
void move_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r)
    memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch, static_cast<size_t>(width));
}

// Pinned memory for one copy; the command buffer keeps it alive for as long as the device needs it.
struct Staged {
  explicit Staged(int64_t bytes) : memory(backend::allocate(bytes, true, Site())) {}
  ~Staged() { backend::release(memory, true); }
  void* memory;
};

}  // namespace

namespace backend {

const char* const name = "metal";
const char* const arithmetic = kMetalArithmetic;
const char* const matrix_units = kMetalMatrixUnits;
const char* const source_hash = DLAB_SOURCE_HASH;
const uint32_t where = DLAB_CAP_DEVICE;

void require_device() {
  @autoreleasepool {
    Device& d = device();
    const std::lock_guard<std::mutex> lock(d.mutex);
    if (d.device) return;
    id<MTLDevice> found = MTLCreateSystemDefaultDevice();
    if (!found) fail(DLAB_E_NO_DEVICE, "Metal finds no device here; use the library metal-emu");
    if (![found supportsFamily:MTLGPUFamilyApple7] && ![found supportsFamily:MTLGPUFamilyMac2])
      fail(DLAB_E_NO_DEVICE, "the device %s is neither of family Apple7 nor Mac2; use the library metal-emu", [[found name] UTF8String]);
    d.device = found;
    try {
      compile(d);
    } catch (...) {
      d.device = nil;
      d.libraries.clear();
      throw;
    }
  }
}

void* allocate(int64_t bytes, bool pinned, Site) {
  Device& d = device();
  const std::lock_guard<std::mutex> lock(d.mutex);
  id<MTLBuffer> made = [d.device newBufferWithLength:static_cast<NSUInteger>(bytes) options:MTLResourceStorageModeShared];
  if (!made) fail(DLAB_E_NOMEM, "Metal has no buffer of %lld bytes", ll(bytes));
  void* contents = [made contents];
  d.allocations[reinterpret_cast<uintptr_t>(contents)] = {made, pinned};
  return contents;
}

void release(void* memory, bool) noexcept {
  const std::lock_guard<std::mutex> lock(device().mutex);
  device().allocations.erase(reinterpret_cast<uintptr_t>(memory));
}

bool on_device(const void* p) { return is_ours(p, false); }

StreamHandle make_stream() {
  auto* made = new DeviceStream;
  made->queue = [device().device newCommandQueue];
  return made;
}

void destroy(StreamHandle stream) noexcept {
  if (!stream) return;
  @autoreleasepool {
    commit(*stream);
    for (id<MTLCommandBuffer> buffer : stream->running) [buffer waitUntilCompleted];
  }
  delete stream;
}

void wait(StreamHandle stream, Site) {
  @autoreleasepool {
    commit(*stream);
    std::vector<id<MTLCommandBuffer>> running;
    running.swap(stream->running);
    for (id<MTLCommandBuffer> buffer : running) wait_for(buffer);
  }
}

EventHandle make_event() {
  auto* made = new DeviceEvent;
  made->event = [device().device newSharedEvent];
  return made;
}

void destroy(EventHandle event) noexcept { delete event; }

void record(EventHandle event, StreamHandle stream, Site) {
  @autoreleasepool {
    end_encoder(*stream);
    event->signals = open_buffer(*stream);
    [event->signals encodeSignalEvent:event->event value:++event->recorded];
    commit(*stream);
  }
}

void hold(StreamHandle stream, EventHandle event, Site) {
  if (event->recorded == 0) return;
  @autoreleasepool {
    end_encoder(*stream);
    [open_buffer(*stream) encodeWaitForEvent:event->event value:event->recorded];
  }
}

void wait(EventHandle event, Site) {
  if (event->signals) wait_for(event->signals);
}

void copy(StreamHandle stream, void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows,
          Direction direction, Site site) {
  if (direction == Direction::Up && !is_ours(from, true)) {
    const Staged staged(width * rows);
    move_rows(staged.memory, width, from, from_pitch, width, rows);
    copy_on_device(stream, to, to_pitch, staged.memory, width, width, rows, site);
  } else if (direction == Direction::Down && !is_ours(to, true)) {
    const Staged staged(width * rows);
    copy_on_device(stream, staged.memory, width, from, from_pitch, width, rows, site);
    wait(stream, site);
    move_rows(to, to_pitch, staged.memory, width, width, rows);
  } else {
    copy_on_device(stream, to, to_pitch, from, from_pitch, width, rows, site);
  }
}

}  // namespace backend

void dispatch(StreamHandle stream, const char* kernel, Threads threadgroups, int64_t threads, const std::vector<Argument>& arguments, Site) {
  @autoreleasepool {
    id<MTLComputePipelineState> state = pipeline(kernel);
    id<MTLComputeCommandEncoder> encoder = open_encoder(*stream);
    [encoder setComputePipelineState:state];
    for (size_t i = 0; i < arguments.size(); ++i) bind(encoder, arguments[i], i);
    const auto size = [](int64_t n) { return static_cast<NSUInteger>(n); };
    [encoder dispatchThreadgroups:MTLSizeMake(size(threadgroups.x), size(threadgroups.y), size(threadgroups.z))
            threadsPerThreadgroup:MTLSizeMake(size(threads), 1, 1)];
  }
}

}  // namespace dlab::gpu
