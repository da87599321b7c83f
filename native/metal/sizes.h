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
  int64_t rows, width, row_bytes;
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

struct Copy {
  int64_t rows, width, to_pitch, from_pitch;  // in units of the kernel
};

}  // namespace sizes
