#include "metal_kernel.hpp"

#include <cstring>
#include <map>
#include <string>

#include "findings.hpp"

namespace emu {

namespace {

std::map<std::string, const MetalKernel*>& kernels() {
  static auto* all = new std::map<std::string, const MetalKernel*>;
  return *all;
}

SharedVariable dispatched{"threadgroup memory of the dispatch", "", 0};

Status refuse(const std::string& text, Place place) {
  report(kind::kApi, {place}, text);
  return Status::InvalidValue;
}

// Empty when every parameter of the kernel is bound to something of its size.
std::string mismatch(const MetalKernel& kernel, const std::vector<MetalArgument>& arguments, size_t threadgroup_memories) {
  for (size_t i = 0; i < kernel.count; ++i) {
    const auto [slot, index] = kernel.parameters[i];
    const auto at = static_cast<size_t>(index);
    if (slot == Slot::Threadgroup && at >= threadgroup_memories) return "has no threadgroup memory " + std::to_string(index);
    if (slot != Slot::Buffer) continue;
    if (at >= arguments.size() || !(arguments[at].device || arguments[at].bytes)) return "has no buffer " + std::to_string(index);
    if (arguments[at].bytes && kernel.sizes[i] && kernel.sizes[i] != arguments[at].size)
      return "gives " + std::to_string(arguments[at].size) + " bytes at buffer " + std::to_string(index) + ", the kernel takes " +
             std::to_string(kernel.sizes[i]);
  }
  return "";
}

}  // namespace

void MetalKernel::enter() const { kernels()[name] = this; }

Index builtin(Slot slot) {
  const Index t = thread_index(), b = block_index();
  const Extent d = block_extent(), g = grid_extent();
  switch (slot) {
    case Slot::ThreadInGrid: return {b.x * d.x + t.x, b.y * d.y + t.y, b.z * d.z + t.z};
    case Slot::ThreadInThreadgroup: return t;
    case Slot::ThreadIndexInThreadgroup: return {linear_index(), 0, 0};
    case Slot::ThreadIndexInSimdgroup: return {linear_index() % kWarp, 0, 0};
    case Slot::SimdgroupIndexInThreadgroup: return {linear_index() / kWarp, 0, 0};
    case Slot::ThreadgroupInGrid: return b;
    case Slot::ThreadsPerThreadgroup: return {d.x, d.y, d.z};
    case Slot::ThreadgroupsPerGrid: return {g.x, g.y, g.z};
    case Slot::ThreadsPerGrid: return {g.x * d.x, g.y * d.y, g.z * d.z};
    case Slot::ThreadsPerSimdgroup: return {kWarp, 0, 0};
    case Slot::SimdgroupsPerThreadgroup: return {static_cast<unsigned>((d.count() + kWarp - 1) / kWarp), 0, 0};
    default: return {};
  }
}

unsigned linear_index() {
  const Index t = thread_index();
  const Extent d = block_extent();
  return t.x + d.x * (t.y + d.y * t.z);
}

void* threadgroup_memory(size_t offset) { return static_cast<char*>(shared_variable(dispatched, 0)) + offset; }

Status dispatch(const char* name, Extent threadgroups, Extent threads, const std::vector<MetalArgument>& arguments,
                const std::vector<size_t>& threadgroup_bytes, Stream* stream, Place place) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) return refuse(std::string("{0} dispatches kernel ") + name + ", which no source defines", place);
  const MetalKernel& kernel = *found->second;
  if (arguments.size() > kMetalSlots || threadgroup_bytes.size() > kMetalSlots) return refuse("{0} gives more than 31 arguments", place);
  if (const std::string wrong = mismatch(kernel, arguments, threadgroup_bytes.size()); !wrong.empty())
    return refuse(std::string("the dispatch of kernel ") + name + " at {0} " + wrong, place);
  constexpr size_t kAligned = 16;
  Bound bound{};
  bound.kernel = &kernel;
  Launch launch;
  launch.closure.resize((sizeof bound + kAligned - 1) / kAligned * kAligned);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const MetalArgument& a = arguments[i];
    bound.buffers[i].device = a.device;
    if (!a.bytes) continue;
    bound.buffers[i].offset = launch.closure.size();
    launch.closure.resize(launch.closure.size() + (a.size + kAligned - 1) / kAligned * kAligned);
    memcpy(launch.closure.data() + bound.buffers[i].offset, a.bytes, a.size);
  }
  for (size_t i = 0; i < threadgroup_bytes.size(); ++i) {
    bound.threadgroup[i] = launch.dynamic_shared;
    launch.dynamic_shared += (threadgroup_bytes[i] + kAligned - 1) / kAligned * kAligned;
  }
  memcpy(launch.closure.data(), &bound, sizeof bound);
  launch.kernel = name;
  launch.place = place;
  launch.grid = threadgroups;
  launch.block = threads;
  launch.language = &kMetal;
  launch.body = [](const void* closure) {
    const auto& b = *static_cast<const Bound*>(closure);
    b.kernel->call(*b.kernel, b);
  };
  return emu::launch(std::move(launch), stream);
}

}  // namespace emu
