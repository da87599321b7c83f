// The fused drafter on the device: weights and context stay there, and a whole append or propose is issued before anything is waited for.
//
// Appending and proposing have a stream each, ordered by two events, so that the next rows can be appended while a block is still on its
// way. What the host hands over goes through pinned memory that nothing rewrites before an event says that its copies have run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cpu/drafter.hpp"
#include "gpu/gpu.hpp"

namespace dlab::gpu {

// A matrix in device memory.
struct DeviceMatrix {
  Buffer<uint8_t> bytes;
  Matrix view;
};

struct DeviceLayer {
  DeviceMatrix q, k, v, o, gate, up, down, attn_gate;
  Buffer<float> input_norm, post_norm, q_norm, k_norm, q_bias, k_bias, v_bias, o_bias;  // biases: empty for none
};

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

// Has somebody asked for the stage, and what they then get: dense host values.
bool wants_dump(const dlab_ctx& ctx, const std::string& stage);
void dump_dense(const dlab_ctx& ctx, const std::string& stage, const void* host, int64_t row0, const std::vector<int64_t>& shape,
                int32_t dtype);

class Drafter {
 public:
  Drafter(Gpu& gpu, Config configuration, const DrafterWeights& weights);

  // Both change the context as a whole or, when they throw, not at all.
  void append(Rows taps, int64_t pos0);
  void truncate(int64_t kept);
  // ids [rows], top2 [rows][2] or nullptr, logits of draft_vocab values per row or no data
  void propose(const int32_t* block_ids, int64_t rows, int64_t pos, int32_t* ids, float* top2, Rows logits);
  // The held cells of a layer as f32, [held][kv_heads * head_dim].
  void read_cells(int64_t layer, std::vector<float>& k, std::vector<float>& v);

  Gpu& gpu;
  const Config config;
  std::vector<int64_t> positions;  // of the rows held, ascending
  std::vector<int32_t> drafts;     // of the last block
  bool proposed = false;

 private:
  struct Pass;  // one append or propose: stream, workspace, rows

  void require_supported() const;
  void require_held(int64_t kept) const;
  std::vector<int64_t> rotated(int64_t pos0, int64_t rows) const;
  void reserve(int64_t cells);
  void move_cells(StreamHandle stream, int64_t from, int64_t to, int64_t count);
  void append_rows(Rows taps, int64_t pos0, int64_t cell);
  void layer(int64_t index, Pass& pass, float*& hidden);
  float* attend(int64_t index, Pass& pass, const float* q);
  void upload_table(Staging<float>& staging, Pass& pass);
  void upload_masks(Pass& pass);
  void choose(Pass& pass, const float* logits);
  void finish(int64_t rows, int32_t* ids, float* top2, Rows logits);
  void evict();

  // One operation each, recorded under its stage path; heads = 0: the stage has no head axis.
  float* project(Pass& pass, const std::string& stage, const float* x, const DeviceMatrix& w, const Buffer<float>* bias, int64_t heads);
  float* normalise(Pass& pass, const std::string& stage, const float* x, const Buffer<float>& w, int64_t heads);
  float* rotate(Pass& pass, const std::string& stage, const float* x, int64_t heads);
  void store_cells(Pass& pass, const float* x, Buffer<uint8_t>& cells, int64_t cell);
  void emit(Pass& pass, const std::string& stage, const void* device, std::vector<int64_t> shape, int32_t dtype = DLAB_F32);

  void* cell_at(const Buffer<uint8_t>& cells, int64_t cell) const { return cells.get() + cell * cell_bytes(); }
  int64_t cell_bytes() const { return config.cell_width() * (gpu.cell_dtype == DLAB_F16 ? 2 : 4); }
  int64_t held() const { return static_cast<int64_t>(positions.size()); }

  DeviceMatrix fc_, embedding_, head_;
  Buffer<float> hidden_norm_, norm_, tap_norm_;
  std::vector<DeviceLayer> layers_;
  std::vector<int64_t> target_ids_;
  std::vector<double> inv_freq_;

  Stream appends_, blocks_;
  Event appended_, proposed_;  // the last append, the last propose: the other stream's next work comes after
  Workspace append_space_, block_space_;
  Staging<float> taps_stage_, append_table_stage_, block_table_stage_;
  Staging<int32_t> ids_stage_;
  Staging<uint8_t> mask_stage_;
  Pinned<int32_t> ids_out_;
  Pinned<float> best_out_, logits_out_;
  Buffer<int32_t> ids_, best_ids_;
  Buffer<float> best_;
  Buffer<uint8_t> masks_, moved_;
  std::vector<Pool> pools_;
  int64_t capacity_ = 0;  // cells of every pool
  int64_t length_ = 0;    // rows committed
  int64_t dropped_ = 0;   // rows sink .. dropped-1 were evicted
  std::vector<int64_t> exposed_;  // positions that a rotating cache still holds, ascending
};

}  // namespace dlab::gpu
