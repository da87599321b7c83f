// The numbers of a launch, laid out alike for the host and the device.
#pragma once

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

namespace sizes {

struct Linear {
  int64_t rows, width, outputs, row_bytes;  // of x; of w: outputs rows of row_bytes
  int32_t has_bias;
};

struct RmsNorm {
  int64_t width, groups;  // of a group; in a row
  float eps, offset;
  int32_t has_weight, shared;
};

struct Rows {
  int64_t rows, width;
  float scale;
};

struct Gather {
  int64_t rows, width, row_bytes, table_rows;
  float scale;
  int32_t has_ids;
};

struct Convert {
  int64_t count;
  int32_t from, to;  // dlab_dtype
};

struct Rope {
  int64_t vectors, heads, dim, rotated;
  int32_t interleaved;
};

struct Gate {
  int64_t count, per_logit;
  int32_t softplus;
};

struct SwiGlu {
  int64_t count;
  int32_t gelu;
};

struct Softcap {
  int64_t count;
  float scale, cap;
};

struct Attention {
  int64_t rows, heads, kv_heads, dim, cells;
  float scale;
  int32_t keys, values;  // dlab_dtype
  int32_t has_mask, has_sinks;
};

struct Squash {
  int64_t count;
  float scale, gain;
};

struct Decay {
  int64_t count, heads;
};

struct L2Norm {
  int64_t width;
  float eps, scale;
};

// Streams side by side, of n values each.
struct Streams {
  int64_t rows, streams, n;
};

struct PleGate {
  int64_t n;
  float root;  // of n
};

struct ShortConv {
  int64_t rows, channels, taps, dilation;
};

struct DynamicConv {
  int64_t rows, n, taps, groups, side;
};

struct Delta {
  int64_t rows, heads, key_heads, depth, n;
};

struct BlockMean {
  int64_t blocks, ratio, width;
};

struct IndexScores {
  int64_t heads, dim, blocks, ratio;
  float scale;
};

struct SelectCells {
  int64_t blocks, cells, ratio, budget;
};

struct Select {
  int64_t width, k;
  int32_t has_bias;
};

struct SelectorScores {
  int64_t vocab, count, n;
};

struct Experts {
  int64_t rows, experts, ranks;
  float scale;
  int32_t normalise;
};

struct Copy {
  int64_t rows, width, to_pitch, from_pitch;  // in units of the kernel
};

}  // namespace sizes
