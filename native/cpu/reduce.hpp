// Two arrays of recorded values, element by element: how many differ and how far. Part of the table of kernels (kernels.cpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"

namespace dlab {
namespace {

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

typedef double Doubles __attribute__((vector_size(32)));
typedef int64_t Bits __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(8)));
constexpr int64_t kColumns = sizeof(Doubles) / sizeof(double);
constexpr int64_t kStep = 2 * kColumns;

struct Tally {
  Doubles abs = {}, ulps = {};
  Bits count = {};
};

inline Doubles larger(Doubles a, Doubles b) { return a > b ? a : b; }

template <class T>
T vector_at(const void* from) {
  T out;
  memcpy(&out, from, sizeof out);
  return out;
}

// How a kind of value is read, kColumns at a time.
struct AsF64 {
  static constexpr int64_t bytes = 8;
  static Doubles load(const char* from) { return vector_at<Doubles>(from); }
};
struct AsF32 {
  static constexpr int64_t bytes = 4;
  static Doubles load(const char* from) { return __builtin_convertvector(vector_at<Floats>(from), Doubles); }
};
struct AsBf16 {
  static constexpr int64_t bytes = 2;
  static Doubles load(const char* from) {
    return __builtin_convertvector((Floats)(__builtin_convertvector(vector_at<Halves>(from), Words) << 16), Doubles);
  }
};

// The format whose spacings are counted. least: its smallest normal value; scale: half of 2^(p-1), see `inverse`.
struct Spacing {
  double least, scale;
};

inline void differ_once(Doubles a, Doubles b, Spacing spacing, Tally& t) {
  const Bits magnitude = Bits{} + INT64_MAX, exponent = Bits{} + (int64_t{0x7ff} << 52);
  const Doubles floor = Doubles{} + spacing.least, finite = Doubles{} + 0x1.fffffffffffffp1023;
  const Bits differs = ~((a == b) | ((a != a) & (b != b)));
  const Doubles apart = (Doubles)((Bits)(a - b) & magnitude);
  const Doubles most = larger(larger((Doubles)((Bits)a & magnitude), (Doubles)((Bits)b & magnitude)), floor);
  // 2 / 2^exponent(most), from its bits: no division, and no overflow at either end.
  const Doubles inverse = (Doubles)(exponent - ((Bits)most & exponent));
  const Doubles kept = (Doubles)((Bits)apart & differs & (apart <= finite));
  t.count -= differs;
  t.abs = larger(kept, t.abs);
  t.ulps = larger(kept * inverse * spacing.scale, t.ulps);
}

// n is a multiple of kStep. Two tallies, so that one comparison need not wait for the other.
template <class As>
void differ(const char* x, const char* y, int64_t n, Spacing spacing, Tally tally[2]) {
  Tally t = tally[0], u = tally[1];
  for (int64_t i = 0; i < n; i += kStep) {
    const int64_t at = i * As::bytes, next = (i + kColumns) * As::bytes;
    differ_once(As::load(x + at), As::load(y + at), spacing, t);
    differ_once(As::load(x + next), As::load(y + next), spacing, u);
  }
  tally[0] = t;
  tally[1] = u;
}

using Differ = void (*)(const char*, const char*, int64_t, Spacing, Tally*);
// By kind, where both sides have it; the others are widened first.
constexpr Differ kDirect[] = {differ<AsF64>, differ<AsF32>, nullptr, differ<AsBf16>, nullptr, nullptr, nullptr};

void differ_i64(const char* a, const char* b, int64_t n, Spacing spacing, Tally& tally) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t x = vector_at<int64_t>(a + 8 * i), y = vector_at<int64_t>(b + 8 * i);
    if (x == y) continue;
    const uint64_t apart = x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y) : static_cast<uint64_t>(y) - static_cast<uint64_t>(x);
    const double p = std::fabs(static_cast<double>(x)), q = std::fabs(static_cast<double>(y));
    double most = p > q ? p : q;
    most = most > spacing.least ? most : spacing.least;
    const double inverse = bits_as<double>((int64_t{0x7ff} << 52) - (bits_as<int64_t>(most) & (int64_t{0x7ff} << 52)));
    const double kept = static_cast<double>(apart), ulps = kept * inverse * spacing.scale;
    tally.count[0] += 1;
    tally.abs[0] = kept > tally.abs[0] ? kept : tally.abs[0];
    tally.ulps[0] = ulps > tally.ulps[0] ? ulps : tally.ulps[0];
  }
}

void differ_values(int32_t ka, const char* a, int32_t kb, const char* b, int64_t n, Spacing spacing, Tally tally[2]) {
  alignas(64) double x[kBlock], y[kBlock];
  const int64_t wa = kFormats[ka].bytes, wb = kFormats[kb].bytes;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = n - i < kBlock ? n - i : kBlock;
    const char *p = a + i * wa, *q = b + i * wb;
    if (ka == kb && !memcmp(p, q, static_cast<size_t>(count * wa))) continue;
    if (ka == kI64 && kb == kI64) {
      differ_i64(p, q, count, spacing, tally[0]);
      continue;
    }
    const int64_t direct = ka == kb && kDirect[ka] ? count / kStep * kStep : 0;
    if (direct) kDirect[ka](p, q, direct, spacing, tally);
    const int64_t left = count - direct, whole = (left + kStep - 1) / kStep * kStep;
    if (!left) continue;
    kFormats[ka].widen(p + direct * wa, left, x);
    kFormats[kb].widen(q + direct * wb, left, y);
    for (int64_t k = left; k < whole; ++k) x[k] = y[k] = 0.0;
    differ<AsF64>(reinterpret_cast<const char*>(x), reinterpret_cast<const char*>(y), whole, spacing, tally);
  }
}

void differences(const DifferenceItem& item, Difference& out) {
  Tally tally[2];
  int64_t before = 0;
  for (int64_t r = 0; r < item.rows; ++r) {
    const char* a = static_cast<const char*>(item.a) + r * item.width * kFormats[item.kind_a].bytes;
    const char* b = static_cast<const char*>(item.b) + r * item.width * kFormats[item.kind_b].bytes;
    differ_values(item.kind_a, a, item.kind_b, b, item.width, {item.least, item.scale}, tally);
    int64_t now = 0;
    for (int64_t j = 0; j < kColumns; ++j) now += tally[0].count[j] + tally[1].count[j];
    item.differs[r] = now != before;
    before = now;
  }
  out = {before, 0.0, 0.0};
  const Doubles abs = larger(tally[0].abs, tally[1].abs), ulps = larger(tally[0].ulps, tally[1].ulps);
  for (int64_t j = 0; j < kColumns; ++j) {
    out.max_abs = abs[j] > out.max_abs ? abs[j] : out.max_abs;
    out.ulps = ulps[j] > out.ulps ? ulps[j] : out.ulps;
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
