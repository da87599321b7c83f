// The stages of a call on their way to the dump callback. Copies are issued as the work is and handed over when all has been issued, so
// that an engine that is looked at runs in the order in which it runs alone.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "cpu/dumping.hpp"
#include "gpu/device.hpp"

namespace dlab::gpu {

class Recorder {
 public:
  // Keeps a stage if somebody asked for it: dense device values of a shape.
  void take(const dlab_ctx& ctx, StreamHandle stream, const std::string& stage, const void* device, int64_t row0,
            const std::vector<int64_t>& shape, int32_t dtype, Site site = {});
  // Waits and hands over what was taken, in order; nothing to do where nothing was. Throws what the callback's refusal throws.
  void deliver(const dlab_ctx& ctx);
  // Of a call that failed.
  void forget();
  // More than should be kept: time to deliver.
  bool full() const { return bytes_ > kMost; }

 private:
  static constexpr int64_t kMost = int64_t{1} << 28, kBlock = int64_t{1} << 22;

  struct Stage {
    std::string name;
    const uint8_t* values;
    int64_t row0;
    std::vector<int64_t> shape;
    int32_t dtype;
  };

  uint8_t* room(int64_t bytes);
  void clear();

  std::vector<Stage> stages_;
  StreamHandle stream_ = nullptr;
  int64_t bytes_ = 0;
  // Kept from call to call and never moved: freeing pinned memory would wait for the device.
  std::deque<Pinned<uint8_t>> blocks_;
  size_t block_ = 0;   // the one that is being filled
  int64_t used_ = 0;  // bytes of it
};

}  // namespace dlab::gpu
