// The fused drafter on a device: weights and context stay there, and a whole append or propose is issued before anything is waited for.
//
// Appending and proposing have a stream each, ordered by two events, so that the next rows can be appended while a block is still on its
// way. What the host hands over goes through pinned memory that nothing rewrites before an event says that its copies have run.
//
//   device_drafter.cpp          the block: layers, logits, picks
//   device_drafter_context.cpp  committed rows: appending, the pools of cells, what a block sees
//   device_drafter_heads.cpp    from picks to drafts: selector, Markov and confidence heads
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cpu/fused.hpp"
#include "gpu/device_weights.hpp"
#include "gpu/recorder.hpp"

namespace dlab::gpu {

// Keys and values of the committed rows of one layer, and behind them room for the rows of a block: [cells][kv_heads * head_dim].
struct Pool {
  Buffer<uint8_t> k, v;
};

// Intermediate values, one buffer per name, kept from call to call.
class Workspace {
 public:
  float* floats(const std::string& name, int64_t count) {
    Buffer<float>& buffer = buffers_[name];
    buffer.grow(count);
    return buffer.get();
  }

 private:
  std::map<std::string, Buffer<float>> buffers_;
};

// Pinned memory for one direction of one kind of data. fill() waits until the copies of the last filling have run.
template <class T>
class Staging {
 public:
  T* fill(int64_t count) {
    if (used_) copied_.wait();
    memory_.grow(count);
    return memory_.get();
  }
  // To call after the copies that read the memory have been issued.
  void issued(StreamHandle stream) {
    copied_.record(stream);
    used_ = true;
  }

 private:
  Pinned<T> memory_;
  Event copied_;
  bool used_ = false;
};

class DeviceDrafter final : public dlab_drafter {
 public:
  DeviceDrafter(Gpu& context, Config configuration, const DrafterWeights& weights);

  void append(Rows taps, int64_t pos0) override;
  void truncate(int64_t kept) override { held.truncate(kept); }
  void propose(const int32_t* block_ids, int64_t rows, int64_t pos, int32_t* ids, float* top2, Rows logits) override;
  void read_cells(int64_t layer, Rows k, Rows v) override;

 private:
  // One append or propose.
  struct Pass {
    StreamHandle stream;
    Workspace& space;
    int64_t rows;
    int64_t row0;  // as dumps count them
    int64_t pos;   // position of the first row
    int64_t cell;  // where the pass's own cells go
    const float* table = nullptr;
    const uint8_t* masks[4] = {};  // by 2 * causal + sliding
  };

  void layer(int64_t index, Pass& pass, const float*& hidden);
  const float* attend(int64_t index, Pass& pass, const float* q);
  const float* gated(const std::string& path, Pass& pass, const float* xn, const float* attended, const DeviceMatrix& w);
  const float* score(Pass& pass, const float* hidden);
  void fetch(Pass& pass, const float* logits, bool all);
  void finish(int64_t rows, int32_t* ids, float* top2, Rows logits);

  void reserve(int64_t cells);
  void move_cells(StreamHandle stream, int64_t from, int64_t to, int64_t count);
  void append_rows(Rows taps, int64_t pos0, int64_t cell);
  void upload_table(Staging<float>& staging, Pass& pass);
  void upload_masks(Pass& pass);
  void evict();

  // Rows first .. rows-1 of the block draft; their drafts go to drafts_ and confidence_.
  int64_t first_draft() const { return config.predict_next ? 0 : 1; }
  void draft(Pass& pass, const float* hidden, const float* logits);
  void selector_walk(Pass& pass, const float* hidden, const float* logits);
  void markov_walk(Pass& pass, const float* hidden, const float* logits);
  const float* markov_code(const std::string& path, Pass& pass, const float* embedded, const float* hidden, const float*& state);
  struct Part {
    const float* values;
    int64_t count;
  };
  const float* join(Pass& pass, const std::string& stage, std::initializer_list<Part> parts);

  // One operation each, recorded under its stage path; heads = 0: the stage has no head axis.
  float* project(Pass& pass, const std::string& stage, const float* x, const DeviceMatrix& w, const DeviceVector* bias, int64_t heads);
  float* normalise(Pass& pass, const std::string& stage, const float* x, const DeviceVector& w, int64_t heads);
  float* rotate(Pass& pass, const std::string& stage, const float* x, int64_t heads);
  float* residual(Pass& pass, const std::string& stage, const float* x, const float* y);
  float* convolution_kernel(Pass& pass, const std::string& stage, const float* xn, const DeviceMatrix& w);
  float* convolved(Pass& pass, const std::string& stage, const float* x, const float* kernel, const DeviceVector& base, int64_t side);
  void store_cells(Pass& pass, const float* x, Buffer<uint8_t>& cells, int64_t cell);
  void emit(Pass& pass, const std::string& stage, const void* device, const std::vector<int64_t>& shape, int32_t dtype = DLAB_F32) {
    recorder_.take(ctx, pass.stream, stage, device, pass.row0, shape, dtype);
  }

  void* cell_at(const Buffer<uint8_t>& cells, int64_t cell) const { return cells.get() + cell * cell_bytes(); }
  int64_t cell_bytes() const { return config.cell_width() * (device_.cell_dtype == DLAB_F16 ? 2 : 4); }

  Gpu& device_;
  Stream appends_, blocks_;
  Event appended_, proposed_;  // the last append, the last propose: the other stream's next work comes after
  const DeviceWeights weights_;
  const std::vector<double> inv_freq_;

  Recorder recorder_;
  Workspace append_space_, block_space_;
  Staging<float> taps_stage_, append_table_stage_, block_table_stage_;
  Staging<int32_t> ids_stage_;
  Staging<uint8_t> mask_stage_;
  Pinned<int32_t> ids_out_, drafts_out_;
  Pinned<float> best_out_, logits_out_, confidence_out_;
  Buffer<int32_t> ids_, best_ids_, picks_, drafts_, candidates_, row_best_;
  Buffer<float> best_, confidence_;
  Buffer<uint8_t> masks_, moved_;
  std::vector<Pool> pools_;
  int64_t capacity_ = 0;  // cells of every pool
};

}  // namespace dlab::gpu
