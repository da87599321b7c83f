#include "gpu/recorder.hpp"

#include <algorithm>

namespace dlab::gpu {

void Recorder::take(const dlab_ctx& ctx, StreamHandle stream, const std::string& stage, const void* device, int64_t row0,
                    const std::vector<int64_t>& shape, int32_t dtype, Site site) {
  if (!wants_dump(ctx, stage)) return;
  int64_t bytes = dtype == DLAB_F16 ? 2 : 4;
  for (const int64_t size : shape) bytes *= size;
  uint8_t* values = room(bytes);
  download(stream, values, device, bytes, site);
  stages_.push_back({stage, values, row0, shape, dtype});
  stream_ = stream;
  bytes_ += bytes;
}

// In the first block from the present one on that has it.
uint8_t* Recorder::room(int64_t bytes) {
  while (block_ < blocks_.size() && blocks_[block_].count() - used_ < bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.emplace_back(std::max(bytes, kBlock));
  uint8_t* found = blocks_[block_].get() + used_;
  used_ += bytes;
  return found;
}

void Recorder::clear() {
  stages_.clear();
  bytes_ = used_ = 0;
  block_ = 0;
}

void Recorder::deliver(const dlab_ctx& ctx) {
  if (stages_.empty()) return;
  backend::wait(stream_, Site());
  std::vector<Stage> taken;
  taken.swap(stages_);
  clear();
  for (const Stage& s : taken) dump_stage(ctx, s.name, s.values, s.row0, s.shape, s.dtype);
}

void Recorder::forget() {
  if (!stages_.empty()) backend::wait(stream_, Site());
  clear();
}

}  // namespace dlab::gpu
