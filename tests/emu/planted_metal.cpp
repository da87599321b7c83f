// Runs the kernels of planted.metal: the host's part of a Metal program on the emulator.
#include <cstdint>
#include <cstring>
#include <vector>

#include "metal_kernel.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Memory {
  explicit Memory(size_t bytes) { emu::allocate(&p, bytes, false, emu::Place::at("planted_metal.cpp", __LINE__)); }
  ~Memory() { emu::release(p, false, emu::Place::at("planted_metal.cpp", __LINE__)); }
  void* p = nullptr;
};

}  // namespace

// x: in_bytes, y: out_bytes; one threadgroup of so many threads. 0 when everything ran.
EXPORT int run_metal(const char* kernel, int wrong, int threads, int threadgroup_bytes, const void* x, int in_bytes, void* y, int out_bytes) {
  const emu::Place here = emu::Place::at("planted_metal.cpp", __LINE__);
  const Memory in(static_cast<size_t>(in_bytes)), out(static_cast<size_t>(out_bytes));
  emu::copy(in.p, x, static_cast<size_t>(in_bytes), emu::Copy::HostToDevice, nullptr, true, here);
  const std::vector<emu::MetalArgument> arguments = {{in.p, nullptr, 0}, {out.p, nullptr, 0}, {nullptr, &wrong, sizeof wrong}};
  std::vector<size_t> shared;
  if (threadgroup_bytes) shared.push_back(static_cast<size_t>(threadgroup_bytes));
  const emu::Status launched =
      emu::dispatch(kernel, {}, {static_cast<unsigned>(threads), 1, 1}, arguments, shared, nullptr, here);
  const emu::Status done = emu::copy(y, out.p, static_cast<size_t>(out_bytes), emu::Copy::DeviceToHost, nullptr, true, here);
  return launched == emu::Status::Success && done == emu::Status::Success ? 0 : 1;
}

// A dispatch that gives a kernel too few arguments, or one of another size.
EXPORT int run_mismatched(int how) {
  const emu::Place here = emu::Place::at("planted_metal.cpp", __LINE__);
  const Memory memory(256);
  const int64_t wide = 0;
  std::vector<emu::MetalArgument> arguments = {{memory.p, nullptr, 0}, {memory.p, nullptr, 0}};
  if (how == 1) arguments.push_back({nullptr, &wide, sizeof wide});
  return static_cast<int>(emu::dispatch(how == 2 ? "nowhere" : "group_sum", {}, {64, 1, 1}, arguments, {}, nullptr, here));
}
