// What every backend's fused drafter is to the entry points (entry_drafter.cpp).
#pragma once

#include <memory>
#include <vector>

#include "drafter_weights.hpp"
#include "held_rows.hpp"

struct dlab_drafter {
  dlab_drafter(dlab_ctx& context, dlab::Config configuration) : ctx(context), config(std::move(configuration)) {}
  virtual ~dlab_drafter() = default;

  // Each changes the context as a whole or, when it throws, not at all.
  virtual void append(dlab::Rows taps, int64_t pos0) = 0;
  virtual void truncate(int64_t kept) = 0;
  // ids [rows]; top2 [rows][2] or nullptr; logits: draft_vocab values per row, or no data.
  virtual void propose(const int32_t* block_ids, int64_t rows, int64_t pos, int32_t* ids, float* top2, dlab::Rows logits) = 0;
  // The cells held by a layer, kv_heads * head_dim values per row.
  virtual void read_cells(int64_t layer, dlab::Rows k, dlab::Rows v) = 0;

  dlab_ctx& ctx;
  const dlab::Config config;
  dlab::HeldRows held{config};
  // Of the last block: whether there was one, what it drafts, and how sure a confidence head is of each draft.
  bool proposed = false;
  std::vector<int32_t> drafts;
  std::vector<float> confidence;
};

namespace dlab {

// The backend's own. borrow: the tensors outlive the drafter.
std::unique_ptr<dlab_drafter> make_drafter(dlab_ctx& ctx, Config config, const dlab_named_tensor* weights, int32_t n, bool borrow);

}  // namespace dlab
