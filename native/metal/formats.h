// Stored formats on the device: four consecutive values at a time.
//
// Scale times multiple is exact in f32 for every format, so the only rounding is the last subtraction of the formats with a minimum: the
// values are those of the format, bit for bit.
#pragma once

#include <metal_stdlib>

using namespace metal;

// Nothing is fused, reordered or approximated that is not written so.
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

// Four bytes, byte i at bits 8i. Blocks of an even number of bytes lie on even addresses only.
static inline uint four_bytes(device const uchar* p) { return *reinterpret_cast<device const uint*>(p); }
static inline uint two_pairs(device const uchar* p) {
  device const ushort* words = reinterpret_cast<device const ushort*>(p);
  return uint(words[0]) | uint(words[1]) << 16;
}

static inline float half_at(device const uchar* p) { return float(as_type<half>(*reinterpret_cast<device const ushort*>(p))); }
static inline float bfloat_of(ushort bits) { return as_type<float>(uint(bits) << 16); }

// To nearest even; NaN stays NaN.
static inline ushort to_bfloat(float value) {
  const uint bits = as_type<uint>(value);
  if (isnan(value)) return ushort(bits >> 16 | 0x40u);
  return ushort((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

constant constexpr int kF16 = 1, kBF16 = 30;  // dlab_dtype

// Value i of a row of F32, F16 or BF16.
static inline float value_at(device const uchar* x, int dtype, long i) {
  if (dtype == kF16) return float(reinterpret_cast<device const half*>(x)[i]);
  if (dtype == kBF16) return bfloat_of(reinterpret_cast<device const ushort*>(x)[i]);
  return reinterpret_cast<device const float*>(x)[i];
}

// Each byte as a value.
static inline float4 bytes_of(uint four) { return float4(as_type<uchar4>(four)); }
static inline float4 signed_bytes_of(uint four) { return float4(as_type<char4>(four)); }
// The low four bits of x, one per byte.
static inline uint bits_apart(uint x) { return (x & 1u) | (x & 2u) << 7 | (x & 4u) << 14 | (x & 8u) << 21; }

// Formats of single values. quad: values i .. i+3 of a row, 0 beyond its width.
struct F32 {
  static float4 quad(device const uchar* row, long i, long width) {
    device const float* p = reinterpret_cast<device const float*>(row);
    float4 w = float4(0.0f);
    for (int t = 0; t < 4; ++t)
      if (i + t < width) w[t] = p[i + t];
    return w;
  }
};

struct F16 {
  static float4 quad(device const uchar* row, long i, long width) {
    device const half* p = reinterpret_cast<device const half*>(row);
    float4 w = float4(0.0f);
    for (int t = 0; t < 4; ++t)
      if (i + t < width) w[t] = float(p[i + t]);
    return w;
  }
};

struct BF16 {
  static float4 quad(device const uchar* row, long i, long width) {
    device const ushort* p = reinterpret_cast<device const ushort*>(row);
    float4 w = float4(0.0f);
    for (int t = 0; t < 4; ++t)
      if (i + t < width) w[t] = bfloat_of(p[i + t]);
    return w;
  }
};

// Formats of blocks: Block::four(block, i) decodes values i .. i+3 of one block.
template <class Block>
struct Blocks {
  static float4 quad(device const uchar* row, long i, long width) {
    return i < width ? Block::four(row + i / Block::kValues * Block::kBytes, int(i % Block::kValues)) : float4(0.0f);
  }
};

struct Q8_0Block {
  enum { kValues = 32, kBytes = 34 };
  static float4 four(device const uchar* b, int i) { return half_at(b) * signed_bytes_of(two_pairs(b + 2 + i)); }
};

// Low nibbles are values 0..15 of a block, high nibbles 16..31.
static inline uint nibbles(uint bytes, int i) { return bytes >> (i < 16 ? 0 : 4) & 0x0f0f0f0fu; }

struct Q4_0Block {
  enum { kValues = 32, kBytes = 18 };
  static float4 four(device const uchar* b, int i) { return half_at(b) * (bytes_of(nibbles(two_pairs(b + 2 + i % 16), i)) - 8.0f); }
};

struct Q4_1Block {
  enum { kValues = 32, kBytes = 20 };
  static float4 four(device const uchar* b, int i) {
    return half_at(b) * bytes_of(nibbles(four_bytes(b + 4 + i % 16), i)) + half_at(b + 2);
  }
};

struct Q5_0Block {
  enum { kValues = 32, kBytes = 22 };
  static float4 four(device const uchar* b, int i) {
    const uint fifth = bits_apart(two_pairs(b + 2) >> i) << 4;
    return half_at(b) * (bytes_of(nibbles(two_pairs(b + 6 + i % 16), i) | fifth) - 16.0f);
  }
};

// The j-th six-bit scale and minimum of a Q4_K or Q5_K block.
static inline float2 scale_and_minimum(device const uchar* s, int j) {
  if (j < 4) return float2(float(s[j] & 63), float(s[j + 4] & 63));
  return float2(float((s[j + 4] & 15) | (s[j - 4] >> 6) << 4), float((s[j + 4] >> 4) | (s[j] >> 6) << 4));
}

struct Q4_KBlock {
  enum { kValues = 256, kBytes = 144 };
  static float4 four(device const uchar* b, int i) {
    const int j = i / 32;
    const float2 s = scale_and_minimum(b + 4, j);
    const uint q = four_bytes(b + 16 + 32 * (i / 64) + i % 32) >> (4 * (j % 2)) & 0x0f0f0f0fu;
    return half_at(b) * s.x * bytes_of(q) - half_at(b + 2) * s.y;
  }
};

struct Q5_KBlock {
  enum { kValues = 256, kBytes = 176 };
  static float4 four(device const uchar* b, int i) {
    const int j = i / 32;
    const float2 s = scale_and_minimum(b + 4, j);
    const uint q = four_bytes(b + 48 + 32 * (i / 64) + i % 32) >> (4 * (j % 2)) & 0x0f0f0f0fu;
    const uint fifth = four_bytes(b + 16 + i % 32) >> j & 0x01010101u;
    return half_at(b) * s.x * bytes_of(q | fifth << 4) - half_at(b + 2) * s.y;
  }
};

struct Q6_KBlock {
  enum { kValues = 256, kBytes = 210 };
  static float4 four(device const uchar* b, int i) {
    const int g = i / 128, part = i % 128 / 32, l = i % 32;
    const float scale = half_at(b + 208) * float(char(b[192 + i / 16]));
    const uint low = two_pairs(b + 64 * g + 32 * (part % 2) + l) >> (4 * (part / 2)) & 0x0f0f0f0fu;
    const uint high = two_pairs(b + 128 + 32 * g + l) >> (2 * part) & 0x03030303u;
    return scale * (bytes_of(low | high << 4) - 32.0f);
  }
};

typedef Blocks<Q8_0Block> Q8_0;
typedef Blocks<Q4_0Block> Q4_0;
typedef Blocks<Q4_1Block> Q4_1;
typedef Blocks<Q5_0Block> Q5_0;
typedef Blocks<Q4_KBlock> Q4_K;
typedef Blocks<Q5_KBlock> Q5_K;
typedef Blocks<Q6_KBlock> Q6_K;

// Makes a kernel of a template for one choice of its arguments, under the name that the host calls.
#define DLAB_INSTANCE(name, function, ...) \
  template [[host_name(name)]] [[kernel]] decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
// The same for every format; make(name, Format).
#define DLAB_EACH_FORMAT(make) \
  make("f32", F32) make("f16", F16) make("bf16", BF16) make("q8_0", Q8_0) make("q4_0", Q4_0) make("q4_1", Q4_1) make("q5_0", Q5_0) \
      make("q4_k", Q4_K) make("q5_k", Q5_K) make("q6_k", Q6_K)
