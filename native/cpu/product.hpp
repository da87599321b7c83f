// Matrix products and attention. Included by kernels.cpp only.
//
// The lanes of a vector are activation rows, so every output is the same chain of scalar operations whatever the number of rows: sums
// of kChunk products in sequence, the chunk sums added in order.
#pragma once

#include <cmath>

#include "decode.hpp"

namespace dlab {
namespace {

#ifdef __AVX__
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(4 * kLanes)));

inline Vector load(const float* p) {
  Vector v;
  memcpy(&v, p, sizeof v);
  return v;
}

// Spelled out: `Vector{} + s` would be a real addition, since 0 + s is not s for s = -0.
#ifdef __AVX__
inline Vector splat(float s) { return Vector{s, s, s, s, s, s, s, s}; }
#else
inline Vector splat(float s) { return Vector{s, s, s, s}; }
#endif

// acc[i] += sum over k < n of w[i][k] * x[k], x being vectors of activation rows.
template <int Tile, int Vectors>
inline void chunk_product(const float (*__restrict w)[kChunk], const float* __restrict x, int64_t n, Vector (*__restrict acc)[Vectors]) {
  Vector sum[Tile][Vectors];
  for (int i = 0; i < Tile; ++i)
    for (int v = 0; v < Vectors; ++v) sum[i][v] = Vector{};
  for (int64_t k = 0; k < n; ++k) {
    Vector row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = load(x + (k * Vectors + v) * kLanes);
    for (int i = 0; i < Tile; ++i) {
      const Vector factor = splat(w[i][k]);
      for (int v = 0; v < Vectors; ++v) sum[i][v] += factor * row[v];
    }
  }
  for (int i = 0; i < Tile; ++i)
    for (int v = 0; v < Vectors; ++v) acc[i][v] += sum[i][v];
}

// Twelve accumulators: enough to hide the latency of an FMA, few enough for sixteen registers.
template <int Lanes>
struct Shape {
  static constexpr int vectors = Lanes / kLanes;
  static constexpr int tile = 12 / vectors;
};

// Dot products of `count` weight rows with each group of packed rows; acc[group][row].
template <int Lanes>
void tile_sums(const Weight& w, int64_t first, int64_t count, const float* packed, int64_t groups,
               Vector (*acc)[Shape<Lanes>::tile][Shape<Lanes>::vectors]) {
  constexpr int kTile = Shape<Lanes>::tile;
  alignas(64) float decoded[kTile][kChunk];
  const int64_t step = chunk_bytes(w.dtype);
  for (int64_t g = 0; g < groups; ++g)
    for (int i = 0; i < kTile; ++i)
      for (Vector& v : acc[g][i]) v = Vector{};
  for (int64_t k = 0, chunk = 0; k < w.width; k += kChunk, ++chunk) {
    const int64_t n = w.width - k < kChunk ? w.width - k : kChunk;
    for (int i = 0; i < kTile; ++i) decode(w.dtype, w.row(first + (i < count ? i : 0)) + chunk * step, decoded[i], n);
    for (int64_t g = 0; g < groups; ++g) {
      const float* x = packed + (g * w.width + k) * Lanes;
      if (n == kChunk) chunk_product<kTile, Shape<Lanes>::vectors>(decoded, x, kChunk, acc[g]);  // a constant unrolls
      else chunk_product<kTile, Shape<Lanes>::vectors>(decoded, x, n, acc[g]);
    }
  }
}

template <int Lanes>
void product_tile(const ProductTile& t) {
  Vector acc[kPassGroups][Shape<Lanes>::tile][Shape<Lanes>::vectors];
  tile_sums<Lanes>(*t.weight, t.first, t.count, t.packed, (t.out.rows + Lanes - 1) / Lanes, acc);
  for (int64_t i = 0; i < t.count; ++i) {
    const int64_t column = t.first + i;
    for (int64_t m = 0; m < t.out.rows; ++m) {
      float lanes[Lanes];
      memcpy(lanes, acc[m / Lanes][i], sizeof lanes);
      t.out.row(m)[column] = t.bias ? lanes[m % Lanes] + t.bias[column] : lanes[m % Lanes];
    }
  }
}

void product(const ProductTile& tile) { tile.lanes == 8 ? product_tile<8>(tile) : product_tile<16>(tile); }

int64_t tile_rows(int64_t lanes) { return lanes == 8 ? Shape<8>::tile : Shape<16>::tile; }

// scores[query][cell] = queries . keys
void attention_scores(const AttentionItem& item, float* packed, float* scores) {
  const int64_t cells = item.keys->rows, dim = item.keys->width;
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t q = 0; q < kGroup; ++q) packed[d * kGroup + q] = q < item.count ? item.queries[q][d] : 0.0f;
  constexpr int64_t kTile = Shape<kGroup>::tile;
  for (int64_t first = 0; first < cells; first += kTile) {
    const int64_t count = cells - first < kTile ? cells - first : kTile;
    Vector acc[1][kTile][Shape<kGroup>::vectors];
    tile_sums<kGroup>(*item.keys, first, count, packed, 1, acc);
    for (int64_t i = 0; i < count; ++i) {
      float lanes[kGroup];
      memcpy(lanes, acc[0][i], sizeof lanes);
      for (int64_t q = 0; q < item.count; ++q) scores[q * cells + first + i] = lanes[q];
    }
  }
}

// Turns scores into exp(scale * score - max) and returns their sum, the sink's share included; 0 when nothing is visible.
double exponentials(float* s, const uint8_t* visible, const float* sink, float scale, int64_t cells) {
  bool any = false;
  float top = -INFINITY;
  for (int64_t c = 0; c < cells; ++c) {
    if (visible && !visible[c]) continue;
    any = true;
    s[c] *= scale;
    if (s[c] > top) top = s[c];
  }
  if (!any) return 0.0;
  if (sink && *sink > top) top = *sink;
  double total = sink ? static_cast<double>(expf(*sink - top)) : 0.0;
  for (int64_t c = 0; c < cells; ++c) {
    if (visible && !visible[c]) continue;
    s[c] = expf(s[c] - top);
    total += static_cast<double>(s[c]);
  }
  return total;
}

// out[d] += sum over n cells of e[c] * v[c][d]; unseen cells are skipped, so their values never matter.
void add_values(const float* e, const uint8_t* visible, const float* v, int64_t stride, int64_t n, int64_t dim, float* out) {
  constexpr int kVectors = 8;
  constexpr int64_t kWidth = kVectors * kLanes;
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) {
    Vector sum[kVectors] = {};
    for (int64_t c = 0; c < n; ++c) {
      if (visible && !visible[c]) continue;
      const Vector weight = splat(e[c]);
      for (int j = 0; j < kVectors; ++j) sum[j] += weight * load(v + c * stride + d + j * kLanes);
    }
    for (int j = 0; j < kVectors; ++j) {
      const Vector next = load(out + d + j * kLanes) + sum[j];
      memcpy(out + d + j * kLanes, &next, sizeof next);
    }
  }
  for (; d < dim; ++d) {
    float sum = 0.0f;
    for (int64_t c = 0; c < n; ++c)
      if (!visible || visible[c]) sum += e[c] * v[c * stride + d];
    out[d] += sum;
  }
}

void attention(const AttentionItem& item) {
  const Weight& values = *item.values;
  const int64_t cells = values.rows, dim = values.width;
  float* packed = item.scratch;
  float* scores = packed + dim * kGroup;
  float* decoded = scores + cells * kGroup;
  attention_scores(item, packed, scores);
  double totals[kGroup];
  for (int64_t q = 0; q < item.count; ++q) {
    totals[q] = exponentials(scores + q * cells, item.visible[q], item.sinks[q], item.scale, cells);
    for (int64_t d = 0; d < dim; ++d) item.outputs[q][d] = 0.0f;
  }
  for (int64_t first = 0; first < cells; first += kChunk) {
    const int64_t n = cells - first < kChunk ? cells - first : kChunk;
    for (int64_t c = 0; c < n; ++c) decode(values.dtype, values.row(first + c), decoded + c * dim, dim);
    for (int64_t q = 0; q < item.count; ++q) {
      const uint8_t* visible = item.visible[q] ? item.visible[q] + first : nullptr;
      add_values(scores + q * cells + first, visible, decoded, dim, n, dim, item.outputs[q]);
    }
  }
  for (int64_t q = 0; q < item.count; ++q) {
    if (totals[q] == 0.0) continue;
    const float total = static_cast<float>(totals[q]);
    for (int64_t d = 0; d < dim; ++d) item.outputs[q][d] /= total;
  }
}

}  // namespace
}  // namespace dlab
