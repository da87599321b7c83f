// The fused drafter: one DFlash forward over cached context cells, built from the same `ops` as the single operations.
#pragma once

#include <string>
#include <vector>

#include "dumping.hpp"
#include "fused.hpp"

namespace dlab {

// A dense block of rows, and its view.
inline std::vector<float> values(int64_t rows, int64_t width) { return std::vector<float>(static_cast<size_t>(rows * width)); }

inline Rows rows_of(const std::vector<float>& v, int64_t rows) {
  const int64_t width = rows ? static_cast<int64_t>(v.size()) / rows : 0;
  return {const_cast<float*>(v.data()), rows, width, width};
}

// Keys and values of the context rows of one layer, [rows][kv_heads * head_dim].
struct Cache {
  std::vector<float> k, v;
};

class CpuDrafter final : public dlab_drafter {
 public:
  CpuDrafter(dlab_ctx& context, Config configuration, DrafterWeights parameters);

  void append(Rows taps, int64_t pos0) override;
  void truncate(int64_t kept) override;
  void propose(const int32_t* block_ids, int64_t rows, int64_t pos, int32_t* ids, float* top2, Rows logits) override;
  void read_cells(int64_t layer, Rows k, Rows v) override;

 private:
  using Values = std::vector<float>;
  struct Block;

  struct Outcome {
    std::vector<int32_t> ids;         // [rows]
    std::vector<float> top2, logits;  // [rows][2], [rows][draft_vocab]
  };

  void layer(int64_t index, Block& block);
  Values attend(int64_t index, const Block& block, const Values& q, const Values& k, const Values& v);
  void evict();
  void trim(int64_t rows);

  // Drafts of the drafted rows, from the block's hidden rows [rows][hidden] and logits.
  struct Drafts {
    std::vector<int32_t> ids;
    std::vector<float> confidence;
  };
  Drafts draft(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome);
  Drafts selector_walk(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome);
  Drafts markov_walk(int32_t anchor, int64_t rows, const Values& hidden, const Outcome& outcome);
  Values markov_code(const std::string& path, const Values& embedded, const Values& hidden, Values& state);

  // One operation each, recorded under its stage path; heads = 0: the stage has no head axis.
  Values project(const std::string& stage, Rows x, const Weight& w, const Values& bias, int64_t heads, int64_t row0);
  Values normalise(const std::string& stage, const Values& x, int64_t rows, const Values& w, int64_t heads, int64_t row0);
  Values normalise_taps(Rows taps, int64_t row0);
  Values gated(const std::string& path, const Values& xn, Values attended, int64_t rows, const Weight& w);
  Values convolution_kernel(const std::string& stage, const Values& xn, int64_t rows, const Weight& w);
  Values convolved(const std::string& stage, const Values& x, const Values& kernel, const Values& base, int64_t rows, int64_t side);
  Values join(const std::string& stage, std::initializer_list<const Values*> parts);
  Values rotate(const std::string& stage, const Values& x, int64_t rows, const Values& table, int64_t heads, int64_t row0);
  Values residual(const std::string& stage, const Values& x, const Values& y, int64_t rows);
  Values rope_table(const std::vector<int64_t>& pos) const;
  void emit(const std::string& stage, const void* data, int64_t row0, const std::vector<int64_t>& shape, int32_t dtype = DLAB_F32,
            int64_t row_stride = 0) const {
    dump_stage(ctx, stage, data, row0, shape, dtype, row_stride);
  }

  const DrafterWeights weights;
  const std::vector<double> inv_freq;
  std::vector<Cache> caches;
};

}  // namespace dlab
