// Two arrays of recorded values, element by element: how many differ and how far. Part of the table of kernels (kernels.cpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"

namespace dlab {
namespace {

constexpr int64_t kBlock = 2048;  // values widened at a time

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
constexpr int32_t kF64 = 0, kI64 = 4;

typedef double Doubles __attribute__((vector_size(32)));
typedef int64_t Bits __attribute__((vector_size(32)));
typedef float Singles __attribute__((vector_size(32)));
typedef int32_t Words __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));
constexpr int64_t kColumns = sizeof(Doubles) / sizeof(double);
constexpr int64_t kSingles = sizeof(Singles) / sizeof(float);
constexpr int64_t kStep = 2 * kSingles;
static_assert(kStep == 4 * kColumns && kBlock % kStep == 0, "a step is two vectors of floats, or four of doubles");

struct Tally {
  Doubles abs = {}, ulps = {};
  Bits count = {};
};

inline Difference together(const Difference& a, const Difference& b) {
  return {a.elements + b.elements, a.max_abs > b.max_abs ? a.max_abs : b.max_abs, a.ulps > b.ulps ? a.ulps : b.ulps};
}

inline Doubles larger(Doubles a, Doubles b) { return a > b ? a : b; }

template <class T>
T vector_at(const void* from) {
  T out;
  memcpy(&out, from, sizeof out);
  return out;
}

// How a kind of value is read: half (0 or 1) of the kStep values at an address, in an order of its own; f32 holds those of 16 bits.
// bits: of its significand.
struct AsF32 {
  static constexpr int64_t bytes = 4;
  static constexpr int32_t bits = 24;
  static Singles load(const char* from, int half) { return vector_at<Singles>(from + half * bytes * kSingles); }
};
struct AsBf16 {
  static constexpr int64_t bytes = 2;
  static constexpr int32_t bits = 8;
  // The even values, then the odd ones: no lane has to move.
  static Singles load(const char* from, int half) {
    const Words pairs = vector_at<Words>(from);
    return (Singles)(half ? pairs & (Words{} - 0x10000) : pairs << 16);
  }
};
struct AsF16 {
  static constexpr int64_t bytes = 2;
  static constexpr int32_t bits = 11;
  static Singles load(const char* step, int half) {
    const char* from = step + half * bytes * kSingles;
#ifdef __F16C__
    typedef int16_t Converted __attribute__((vector_size(16)));
    return (Singles)__builtin_ia32_vcvtph2ps256(vector_at<Converted>(from));
#else
    // As in widen_f16.
    const Words value = __builtin_convertvector(vector_at<Halves>(from), Words), rest = value & 0x7fff;
    const Words special = rest >= 0x7c00, magnitude = (Words)((Singles)(rest << 13) * 0x1p112f);
    return (Singles)((special & ((rest << 13) | 0x7f800000)) | (~special & magnitude) | (value & 0x8000) << 16);
#endif
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
Difference differ(const char* x, const char* y, int64_t n, Spacing spacing) {
  Tally t, u;
  for (int64_t i = 0; i < n; i += 2 * kColumns) {
    const int64_t at = 8 * i, next = 8 * (i + kColumns);
    differ_once(vector_at<Doubles>(x + at), vector_at<Doubles>(y + at), spacing, t);
    differ_once(vector_at<Doubles>(x + next), vector_at<Doubles>(y + next), spacing, u);
  }
  const Bits count = t.count + u.count;
  const Doubles abs = larger(t.abs, u.abs), ulps = larger(t.ulps, u.ulps);
  Difference out{};
  for (int64_t j = 0; j < kColumns; ++j) out = together(out, {count[j], abs[j], ulps[j]});
  return out;
}

// The same in f32, in which a difference may be rounded. A rounded difference is never below another whose exact value is smaller, so the
// largest one says whether the exact values can matter at all.
struct Quick {
  Difference found{};
  bool rounded = false;  // a difference may not be exact
  bool special = false;  // there is an infinity, a NaN, or a difference beyond f32: nothing is found here
};

inline Words larger(Words a, Words b) { return a > b ? a : b; }

inline Words distance(Words a, Words b) { return a - b < 0 ? b - a : a - b; }

// n is a multiple of kStep. Magnitudes are compared by their bits, of which infinity and NaN have the largest.
template <class As>
Quick differ_quickly(const char* x, const char* y, int64_t n, Spacing spacing) {
  const Words magnitude = Words{} + INT32_MAX, exponent = Words{} + (0xff << 23);
  const Words least = (Words)(Singles{} + static_cast<float>(spacing.least));
  Words most_apart = {}, most_ulps = {}, count = {}, most_gap = {};
  for (int64_t i = 0; i < n; i += kStep) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Singles a = As::load(x + i * As::bytes, half), b = As::load(y + i * As::bytes, half);
      const Words p = (Words)a & magnitude, q = (Words)b & magnitude, apart = (Words)(a - b) & magnitude;
      const Words large = larger(p, q), gap = distance(p, q);
      const Singles inverse = (Singles)(exponent - (larger(large, least) & exponent));
      count -= apart > 0;
      // Both are multiples of the spacing at the smaller, and so is the difference: f32 holds it where 24 bits reach from there to its
      // largest, below four times the larger; with all 24 bits in use, one no larger than the smaller.
      most_gap = larger(As::bits == 24 ? apart - (large - gap) : gap, most_gap);
      most_apart = larger(apart, most_apart);
      most_ulps = larger((Words)((Singles)apart * inverse), most_ulps);
    }
  }
  Quick out;
  int32_t apart = 0, ulps = 0, gap = 0;
  for (int64_t j = 0; j < kSingles; ++j) {
    apart = most_apart[j] > apart ? most_apart[j] : apart;
    ulps = most_ulps[j] > ulps ? most_ulps[j] : ulps;
    out.found.elements += count[j];
    gap = most_gap[j] > gap ? most_gap[j] : gap;
  }
  out.rounded = gap > (As::bits == 24 ? 0 : (23 - As::bits) << 23);
  out.special = apart >= 0xff << 23;
  out.found.max_abs = bits_as<float>(apart);
  out.found.ulps = bits_as<float>(ulps) * spacing.scale;
  return out;
}

using Quickly = Quick (*)(const char*, const char*, int64_t, Spacing);
// By kind, where both sides have it; the others are widened first.
constexpr Quickly kQuick[] = {nullptr, differ_quickly<AsF32>, differ_quickly<AsF16>, differ_quickly<AsBf16>, nullptr, nullptr, nullptr};

void differ_i64(const char* a, const char* b, int64_t n, Spacing spacing, Difference& out) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t x = vector_at<int64_t>(a + 8 * i), y = vector_at<int64_t>(b + 8 * i);
    if (x == y) continue;
    const uint64_t apart = x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y) : static_cast<uint64_t>(y) - static_cast<uint64_t>(x);
    const double p = std::fabs(static_cast<double>(x)), q = std::fabs(static_cast<double>(y));
    double most = p > q ? p : q;
    most = most > spacing.least ? most : spacing.least;
    const double inverse = bits_as<double>((int64_t{0x7ff} << 52) - (bits_as<int64_t>(most) & (int64_t{0x7ff} << 52)));
    const double kept = static_cast<double>(apart);
    out = together(out, {1, kept, kept * inverse * spacing.scale});
  }
}

// To f32 and back.
inline double rounded(double x) { return x > 0x1.fffffep127 ? x : static_cast<double>(static_cast<float>(x)); }

// count <= kBlock values, in f64.
Difference differ_exactly(int32_t ka, const char* a, int32_t kb, const char* b, int64_t count, Spacing spacing) {
  alignas(64) double x[kBlock], y[kBlock];
  const int64_t whole = (count + kStep - 1) / kStep * kStep;
  kFormats[ka].widen(a, count, x);
  kFormats[kb].widen(b, count, y);
  for (int64_t k = count; k < whole; ++k) x[k] = y[k] = 0.0;
  return differ(reinterpret_cast<const char*>(x), reinterpret_cast<const char*>(y), whole, spacing);
}

void differ_values(int32_t ka, const char* a, int32_t kb, const char* b, int64_t n, Spacing spacing, Difference& out) {
  const Quickly quickly = ka == kb ? kQuick[ka] : nullptr;
  const int64_t wa = kFormats[ka].bytes, wb = kFormats[kb].bytes;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = n - i < kBlock ? n - i : kBlock;
    const char *p = a + i * wa, *q = b + i * wb;
    if (ka == kb && !memcmp(p, q, static_cast<size_t>(count * wa))) continue;
    if (ka == kI64 && kb == kI64) {
      differ_i64(p, q, count, spacing, out);
      continue;
    }
    int64_t done = 0;
    if (ka == kb && (ka == kF64 || quickly)) done = count / kStep * kStep;
    if (quickly) {
      const Quick quick = quickly(p, q, done, spacing);
      const bool matters = quick.found.max_abs >= rounded(out.max_abs) || quick.found.ulps >= rounded(out.ulps);
      const bool exact = !quick.special && !(quick.rounded && matters);
      out = together(out, exact ? quick.found : differ_exactly(ka, p, kb, q, done, spacing));
    } else if (done) {
      out = together(out, differ(p, q, done, spacing));
    }
    if (done < count) out = together(out, differ_exactly(ka, p + done * wa, kb, q + done * wb, count - done, spacing));
  }
}

void differences(const DifferenceItem& item, Difference& out) {
  out = {};
  for (int64_t r = 0; r < item.rows; ++r) {
    const char* a = static_cast<const char*>(item.a) + r * item.width * kFormats[item.kind_a].bytes;
    const char* b = static_cast<const char*>(item.b) + r * item.width * kFormats[item.kind_b].bytes;
    const int64_t before = out.elements;
    differ_values(item.kind_a, a, item.kind_b, b, item.width, {item.least, item.scale}, out);
    item.differs[r] = out.elements != before;
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
