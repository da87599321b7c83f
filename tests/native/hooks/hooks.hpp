// Mistakes in the fused drafter, for a test library: included before each of its sources, it puts itself between them and the operations.
// What the environment's DLAB_TEST_FAULT names is done wrong; the sources are the shipped ones, and nothing of this is in a shipped library.
#pragma once

#ifdef DLAB_TEST_HOOKS

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "heads.hpp"
#include "ops.hpp"

namespace dlab::hooked {

using namespace dlab::ops;

inline bool planted(const char* fault) {
  const char* named = std::getenv("DLAB_TEST_FAULT");
  return named && std::strcmp(named, fault) == 0;
}

inline int64_t number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoll(text) : 0;
}

// norm.row: row 1 is normed as row 0.
inline void rms_norm(dlab_ctx& ctx, Rows x, const float* w, int64_t size, double eps, double offset, int64_t groups, Rows y) {
  ops::rms_norm(ctx, x, w, size, eps, offset, groups, y);
  if (planted("norm.row") && y.rows > 1) std::copy_n(y.row(0), y.width, y.row(1));
}

// barrier: columns 8 to 15 of every row are read before they are written, and hold what the row before left there.
// tap.order: the taps are read in reverse, DLAB_TEST_TAPS of them.
inline void linear(dlab_ctx& ctx, Rows x, const Weight& w, const float* bias, Rows y) {
  const int64_t taps = number("DLAB_TEST_TAPS");
  if (planted("tap.order") && taps > 1 && x.width == taps * number("DLAB_TEST_TARGET_HIDDEN")) {
    std::vector<float> turned(static_cast<size_t>(x.rows * x.width));
    const int64_t one = x.width / taps;
    for (int64_t r = 0; r < x.rows; ++r)
      for (int64_t t = 0; t < taps; ++t) std::copy_n(x.row(r) + (taps - 1 - t) * one, one, turned.data() + r * x.width + t * one);
    ops::linear(ctx, {turned.data(), x.rows, x.width, x.width}, w, bias, y);
    return;
  }
  ops::linear(ctx, x, w, bias, y);
  if (planted("barrier") && y.width >= 16)
    for (int64_t r = y.rows - 1; r > 0; --r) std::copy_n(y.row(r - 1) + 8, 8, y.row(r) + 8);
}

// rope.heads: the upper half of the heads is rotated by the position of the next row.
inline void rope(dlab_ctx& ctx, Rows x, const std::vector<float>& table, int64_t heads, int64_t rot, bool interleaved, Rows y) {
  ops::rope(ctx, x, table, heads, rot, interleaved, y);
  if (!planted("rope.heads") || x.rows < 2 || heads < 2) return;
  const size_t row = table.size() / static_cast<size_t>(x.rows);
  std::vector<float> next(table.begin() + static_cast<std::ptrdiff_t>(row), table.end());
  const int64_t rows = x.rows - 1, half = x.width / heads * (heads / 2);
  std::vector<float> other(static_cast<size_t>(rows * x.width));
  ops::rope(ctx, {x.data, rows, x.width, x.stride}, next, heads, rot, interleaved, {other.data(), rows, x.width, x.width});
  for (int64_t r = 0; r < rows; ++r) std::copy_n(other.data() + r * x.width + half, x.width - half, y.row(r) + half);
}

// window-1, window+1: one cell less or more at the edge of every row whose window cuts. stale: the last context cell holds the one before.
// gqa: every query head reads the next kv head.
inline void attention(dlab_ctx& ctx, Rows q, int64_t heads, const Cells& k, const Cells& v, const uint8_t* visible, double scale,
                      const float* sinks, Rows out) {
  std::vector<uint8_t> seen(visible, visible + q.rows * k.cells);
  for (int64_t r = 0; r < q.rows; ++r) {
    uint8_t* row = seen.data() + r * k.cells;
    const int64_t first = std::find(row, row + k.cells, uint8_t{1}) - row;
    if (first > 0 && first < k.cells && planted("window-1")) row[first] = 0;
    if (first > 0 && first < k.cells && planted("window+1")) row[first - 1] = 1;
  }
  const auto wrong = [&](const Cells& c) {
    std::vector<float> values(static_cast<size_t>(c.cells * c.kv_heads * c.dim));
    const int64_t width = c.kv_heads * c.dim, last = c.cells - q.rows - 1;
    for (int64_t cell = 0; cell < c.cells; ++cell) {
      const auto* from = reinterpret_cast<const float*>(c.data + (planted("stale") && cell == last && cell > 0 ? cell - 1 : cell) * c.cell_bytes);
      for (int64_t h = 0; h < c.kv_heads; ++h)
        std::copy_n(from + (planted("gqa") ? (h + 1) % c.kv_heads : h) * c.dim, c.dim, values.data() + cell * width + h * c.dim);
    }
    return values;
  };
  const std::vector<float> keys = wrong(k), vals = wrong(v);
  const auto cells = [](const std::vector<float>& x, const Cells& c) {
    return Cells{reinterpret_cast<const uint8_t*>(x.data()), DLAB_F32, c.cells, c.kv_heads, c.dim, c.kv_heads * c.dim * 4};
  };
  ops::attention(ctx, q, heads, cells(keys, k), cells(vals, v), seen.data(), scale, sinks, out);
}

}  // namespace dlab::hooked

#define ops hooked

#endif
