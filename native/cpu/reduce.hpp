// Two arrays of recorded values, element by element: how many differ and how far. Part of the table of kernels (kernels.cpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"

namespace dlab {
namespace {

constexpr int64_t kColumns = 8;
constexpr int64_t kBlock = 512;  // values widened at a time

template <class To, class From>
To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
}

template <class T>
void widen(const void* from, int64_t n, double* to) {
  const T* values = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(values[i]);
}

void widen_bf16(const void* from, int64_t n, double* to) {
  const uint16_t* values = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < n; ++i) to[i] = bits_as<float>(static_cast<uint32_t>(values[i]) << 16);
}

void widen_f16(const void* from, int64_t n, double* to) {
  const uint16_t* values = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t rest = values[i] & 0x7fffu;
    // The exponent is rebased by a product, which also gives subnormals their value; infinity and NaN keep all its bits set.
    const float finite = bits_as<float>(rest << 13) * 0x1p112f;
    const uint32_t magnitude = rest < 0x7c00u ? bits_as<uint32_t>(finite) : (rest << 13) | 0x7f800000u;
    to[i] = bits_as<float>(magnitude | static_cast<uint32_t>(values[i] & 0x8000u) << 16);
  }
}

struct Format {
  int64_t bytes;
  void (*widen)(const void* from, int64_t n, double* to);
};
constexpr Format kFormats[] = {
    {8, widen<double>}, {4, widen<float>}, {2, widen_f16}, {2, widen_bf16}, {8, widen<int64_t>}, {4, widen<int32_t>}, {1, widen<uint8_t>},
};
constexpr int32_t kI64 = 4;

struct Tally {
  double abs[kColumns] = {}, ulps[kColumns] = {};
  int64_t count[kColumns] = {};
};

// n is a multiple of kColumns. least: the smallest normal value of the coarser format; scale: half a power of its precision (below).
void differ(const double* x, const double* y, int64_t n, double least, double scale, Tally& tally) {
  for (int64_t i = 0; i < n; i += kColumns)
    for (int64_t j = 0; j < kColumns; ++j) {
      const double a = x[i + j], b = y[i + j];
      const bool same = (a == b) | ((a != a) & (b != b));
      const double apart = std::fabs(a - b), p = std::fabs(a), q = std::fabs(b);
      double most = p > q ? p : q;
      most = most > least ? most : least;
      // 2 / 2^exponent(most), from its bits: no division, and no overflow at either end.
      const uint64_t power = bits_as<uint64_t>(most) & (uint64_t{0x7ff} << 52);
      const double inverse = bits_as<double>((uint64_t{0x7ff} << 52) - power);
      const double kept = !same & (apart <= 0x1.fffffffffffffp1023) ? apart : 0.0;
      const double ulps = kept * inverse * scale;
      tally.count[j] += !same;
      tally.abs[j] = kept > tally.abs[j] ? kept : tally.abs[j];
      tally.ulps[j] = ulps > tally.ulps[j] ? ulps : tally.ulps[j];
    }
}

void differ_i64(const void* a, const void* b, int64_t n, double least, double scale, Tally& tally) {
  const int64_t* x = static_cast<const int64_t*>(a);
  const int64_t* y = static_cast<const int64_t*>(b);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == y[i]) continue;
    const uint64_t apart = x[i] > y[i] ? static_cast<uint64_t>(x[i]) - static_cast<uint64_t>(y[i])
                                       : static_cast<uint64_t>(y[i]) - static_cast<uint64_t>(x[i]);
    const double p = std::fabs(static_cast<double>(x[i])), q = std::fabs(static_cast<double>(y[i]));
    double most = p > q ? p : q;
    most = most > least ? most : least;
    const double inverse = bits_as<double>((uint64_t{0x7ff} << 52) - (bits_as<uint64_t>(most) & (uint64_t{0x7ff} << 52)));
    const double kept = static_cast<double>(apart), ulps = kept * inverse * scale;
    tally.count[0] += 1;
    tally.abs[0] = kept > tally.abs[0] ? kept : tally.abs[0];
    tally.ulps[0] = ulps > tally.ulps[0] ? ulps : tally.ulps[0];
  }
}

void differ_values(int32_t ka, const char* a, int32_t kb, const char* b, int64_t n, double least, double scale, Tally& tally) {
  alignas(64) double x[kBlock], y[kBlock];
  const int64_t wa = kFormats[ka].bytes, wb = kFormats[kb].bytes;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = n - i < kBlock ? n - i : kBlock;
    if (ka == kb && !memcmp(a + i * wa, b + i * wb, static_cast<size_t>(count * wa))) continue;
    if (ka == kI64 && kb == kI64) {
      differ_i64(a + i * wa, b + i * wb, count, least, scale, tally);
      continue;
    }
    kFormats[ka].widen(a + i * wa, count, x);
    kFormats[kb].widen(b + i * wb, count, y);
    const int64_t whole = (count + kColumns - 1) / kColumns * kColumns;
    for (int64_t k = count; k < whole; ++k) x[k] = y[k] = 0.0;
    differ(x, y, whole, least, scale, tally);
  }
}

void differences(const DifferenceItem& item, Difference& out) {
  Tally tally;
  int64_t before = 0;
  for (int64_t r = 0; r < item.rows; ++r) {
    const char* a = static_cast<const char*>(item.a) + r * item.width * kFormats[item.kind_a].bytes;
    const char* b = static_cast<const char*>(item.b) + r * item.width * kFormats[item.kind_b].bytes;
    differ_values(item.kind_a, a, item.kind_b, b, item.width, item.least, item.scale, tally);
    int64_t now = 0;
    for (int64_t count : tally.count) now += count;
    item.differs[r] = now != before;
    before = now;
  }
  out = {before, 0.0, 0.0};
  for (int64_t j = 0; j < kColumns; ++j) {
    out.max_abs = tally.abs[j] > out.max_abs ? tally.abs[j] : out.max_abs;
    out.ulps = tally.ulps[j] > out.ulps ? tally.ulps[j] : out.ulps;
  }
}

uint64_t read_words(const uint64_t* words, int64_t n) {
  uint64_t sums[32] = {};
  for (int64_t i = 0; i + 32 <= n; i += 32)
    for (int64_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace
}  // namespace dlab
