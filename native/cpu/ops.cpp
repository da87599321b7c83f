#include "ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats.hpp"

namespace dlab::ops {

namespace {

constexpr int64_t kTilesPerItem = 8;

// Activation rows transposed to [group][k][lane], zero where there is no row.
void pack_rows(dlab_ctx& ctx, Rows x, int64_t lanes, float* packed) {
  const int64_t groups = (x.rows + lanes - 1) / lanes, chunks = (x.width + kChunk - 1) / kChunk;
  ctx.pool.run(groups * chunks, [&](int64_t item, int) {
    const int64_t g = item / chunks, first = item % chunks * kChunk, last = std::min(first + kChunk, x.width);
    float* out = packed + g * x.width * lanes;
    for (int64_t m = 0; m < lanes; ++m) {
      const float* row = g * lanes + m < x.rows ? x.row(g * lanes + m) : nullptr;
      for (int64_t k = first; k < last; ++k) out[k * lanes + m] = row ? row[k] : 0.0f;
    }
  });
}

float widen(const uint8_t* data, int32_t dtype) {
  float value;
  uint16_t bits;
  if (dtype == DLAB_F32) {
    memcpy(&value, data, 4);
    return value;
  }
  memcpy(&bits, data, 2);
  return dtype == DLAB_F16 ? half_to_float(bits) : bfloat_to_float(bits);
}

void narrow(float value, int32_t dtype, uint8_t* data) {
  if (dtype == DLAB_F32) {
    memcpy(data, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DLAB_F16 ? float_to_half(value) : float_to_bfloat(value);
  memcpy(data, &bits, 2);
}

}  // namespace

void convert(dlab_ctx& ctx, const Values& x, const Values& y) {
  const int64_t x_bytes = weight_format(x.dtype)->bytes, y_bytes = weight_format(y.dtype)->bytes;
  each_row(ctx, x.width ? x.rows : 0, [&](int64_t r) {
    const uint8_t* from = x.data + r * x.row_bytes;
    uint8_t* to = y.data + r * y.row_bytes;
    for (int64_t i = 0; i < x.width; ++i) narrow(widen(from + i * x_bytes, x.dtype), y.dtype, to + i * y_bytes);
  });
}

void concat(dlab_ctx&, const std::vector<Rows>& parts, Rows y) {
  for (int64_t r = 0; r < y.rows; ++r) {
    float* to = y.row(r);
    for (const Rows& part : parts) {
      if (part.width) memcpy(to, part.row(r), static_cast<size_t>(part.width) * 4);
      to += part.width;
    }
  }
}

void dequant(dlab_ctx& ctx, const Weight& w, Rows y) {
  if (!w.width) return;
  each_row(ctx, w.rows, [&](int64_t r) { ctx.kernels.decode(w.dtype, w.row(r), y.row(r), w.width); });
}

void rms_norm(dlab_ctx& ctx, Rows x, const float* w, int64_t w_size, double eps, double offset, int64_t groups, Rows y) {
  const int64_t width = x.width / groups;
  if (!width) return;
  each_row(ctx, x.rows, [&](int64_t r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float* own = w && w_size > width ? w + g * width : w;
      ctx.kernels.rms_norm(x.row(r) + g * width, own, static_cast<float>(offset), eps, width, y.row(r) + g * width);
    }
  });
}

void linear(dlab_ctx& ctx, Rows x, const Weight& w, const float* bias, Rows y) {
  const int64_t lanes = x.rows <= 8 ? 8 : kGroup, pass = lanes * kPassGroups;
  const int64_t tile = ctx.kernels.tile_rows(lanes), tiles = (w.rows + tile - 1) / tile;
  const int64_t packed_rows = std::min(pass, (x.rows + lanes - 1) / lanes * lanes);
  std::vector<float> packed(static_cast<size_t>(packed_rows * x.width));
  for (int64_t m = 0; m < x.rows; m += pass) {
    const int64_t rows = std::min(pass, x.rows - m);
    pack_rows(ctx, {x.row(m), rows, x.width, x.stride}, lanes, packed.data());
    const Rows out{y.row(m), rows, y.width, y.stride};
    ctx.pool.run((tiles + kTilesPerItem - 1) / kTilesPerItem, [&](int64_t item, int) {
      for (int64_t t = item * kTilesPerItem; t < std::min(tiles, (item + 1) * kTilesPerItem); ++t)
        ctx.kernels.product({&w, t * tile, std::min(tile, w.rows - t * tile), packed.data(), lanes, bias, out});
    });
  }
}

void rope(dlab_ctx& ctx, Rows x, const std::vector<float>& table, int64_t heads, int64_t rot, bool interleaved, Rows y) {
  const int64_t dim = x.width / heads;
  each_row(ctx, x.rows, [&](int64_t r) {
    for (int64_t h = 0; h < heads; ++h)
      ctx.kernels.rope(x.row(r) + h * dim, table.data() + r * rot, rot, dim, interleaved, y.row(r) + h * dim);
  });
}

void attention(dlab_ctx& ctx, Rows q, int64_t heads, const Cells& k, const Cells& v, const uint8_t* visible, double scale,
               const float* sinks, Rows out) {
  const int64_t shared = heads / k.kv_heads, queries = q.rows * shared, parts = (queries + kGroup - 1) / kGroup;
  const int64_t scratch_size = attention_scratch(k.cells, k.dim);
  std::vector<float> scratch(static_cast<size_t>(scratch_size * ctx.pool.threads()));
  ctx.pool.run(k.kv_heads * parts, [&](int64_t item, int thread) {
    const int64_t kv_head = item / parts, first = item % parts * kGroup;
    const Format& kf = *weight_format(k.dtype);
    const Format& vf = *weight_format(v.dtype);
    const Weight keys{k.data + kv_head * k.dim * kf.bytes, k.dtype, k.cells, k.dim, k.cell_bytes};
    const Weight values{v.data + kv_head * v.dim * vf.bytes, v.dtype, v.cells, v.dim, v.cell_bytes};
    AttentionItem work{};
    work.keys = &keys;
    work.values = &values;
    work.count = std::min(kGroup, queries - first);
    work.scale = static_cast<float>(scale);
    work.scratch = scratch.data() + scratch_size * thread;
    for (int64_t i = 0; i < work.count; ++i) {
      const int64_t row = (first + i) / shared, head = kv_head * shared + (first + i) % shared;
      work.queries[i] = q.row(row) + head * k.dim;
      work.outputs[i] = out.row(row) + head * k.dim;
      work.visible[i] = visible ? visible + row * k.cells : nullptr;
      work.sinks[i] = sinks ? sinks + head : nullptr;
    }
    ctx.kernels.attention(work);
  });
}

void gate(dlab_ctx& ctx, Rows x, Rows g, int64_t heads, bool softplus, Rows y) {
  const int64_t dim = x.width / heads;
  const bool one_logit = g.width == heads && dim != 1;
  each_row(ctx, x.rows, [&](int64_t r) {
    for (int64_t h = 0; h < heads; ++h)
      ctx.kernels.gate(x.row(r) + h * dim, g.row(r) + h * (one_logit ? 1 : dim), one_logit, softplus, dim, y.row(r) + h * dim);
  });
}

void swiglu(dlab_ctx& ctx, Rows gate, Rows up, bool gelu, Rows y) {
  each_row(ctx, gate.rows, [&](int64_t r) { ctx.kernels.swiglu(gate.row(r), up.row(r), gelu, gate.width, y.row(r)); });
}

void add(dlab_ctx& ctx, Rows a, Rows b, Rows y) {
  each_row(ctx, a.rows, [&](int64_t r) { ctx.kernels.add(a.row(r), b.row(r), a.width, y.row(r)); });
}

void gather(dlab_ctx& ctx, const Weight& table, const int32_t* ids, double scale, Rows y) {
  if (!table.width) return;
  each_row(ctx, y.rows, [&](int64_t r) {
    ctx.kernels.decode(table.dtype, table.row(ids[r]), y.row(r), table.width);
    ctx.kernels.multiply(y.row(r), static_cast<float>(scale), table.width, y.row(r));
  });
}

void top2(dlab_ctx& ctx, Rows x, int32_t* ids, float* values) {
  each_row(ctx, x.rows, [&](int64_t r) {
    const float* row = x.row(r);
    int32_t first = -1, second = -1;
    for (int64_t i = 0; i < x.width; ++i) {
      if (std::isnan(row[i])) continue;
      if (first < 0 || row[i] > row[first]) {
        second = first;
        first = static_cast<int32_t>(i);
      } else if (second < 0 || row[i] > row[second]) {
        second = static_cast<int32_t>(i);
      }
    }
    const float none = std::numeric_limits<float>::quiet_NaN();
    ids[2 * r] = first;
    ids[2 * r + 1] = second;
    values[2 * r] = first < 0 ? none : row[first];
    values[2 * r + 1] = second < 0 ? none : row[second];
  });
}

void softmax(dlab_ctx& ctx, Rows x, double scale, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) { ctx.kernels.softmax(x.row(r), static_cast<float>(scale), x.width, y.row(r)); });
}

void softcap(dlab_ctx& ctx, Rows x, double scale, double cap, Rows y) {
  each_row(ctx, x.rows, [&](int64_t r) {
    ctx.kernels.softcap(x.row(r), static_cast<float>(scale), static_cast<float>(cap), x.width, y.row(r));
  });
}

}  // namespace dlab::ops
