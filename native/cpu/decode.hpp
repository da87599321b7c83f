// Decoders of the stored formats: 256 values (or a tail) to f32. Included by kernels.cpp only.
//
// Scale times multiple is exact in f32 for every format, so the only rounding is the last subtraction of the formats with a minimum:
// the result is the correctly rounded value whether or not the compiler contracts. The decoders are not inlined: inside the tile loop
// the compiler loses the knowledge that source and destination do not overlap.
#pragma once

#include "formats.hpp"
#include "kernels.hpp"

namespace dlab {
namespace {

// Loops of 16 are kept from being unrolled, or the compiler would not vectorise them.
#define DLAB_DECODER __attribute__((noinline)) void

// o[i] = scale * q[i] - minimum. Count is fixed and the loop plain, so that the compiler vectorises the byte to float conversion.
template <int Count>
inline void scale_bytes(const int8_t* __restrict q, float scale, float minimum, float* __restrict o) {
  for (int i = 0; i < Count; ++i) o[i] = scale * static_cast<float>(static_cast<int>(q[i])) - minimum;
}

DLAB_DECODER decode_f32(const uint8_t* __restrict b, float* __restrict o, int64_t n) { memcpy(o, b, static_cast<size_t>(n) * 4); }

DLAB_DECODER decode_f16(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  for (int64_t i = 0; i < n; ++i) o[i] = load_half(b + 2 * i);
}

DLAB_DECODER decode_bf16(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    memcpy(&bits, b + 2 * i, 2);
    o[i] = bfloat_to_float(bits);
  }
}

DLAB_DECODER decode_q8_0(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  for (; n > 0; n -= 32, b += 34, o += 32) scale_bytes<32>(reinterpret_cast<const int8_t*>(b + 2), load_half(b), 0.0f, o);
}

// Low nibbles are values 0..15, high nibbles 16..31; shift is subtracted from each.
inline void split_nibbles(const uint8_t* __restrict q, int shift, int8_t* __restrict t) {
#pragma GCC unroll 1
  for (int i = 0; i < 16; ++i) {
    t[i] = static_cast<int8_t>((q[i] & 15) - shift);
    t[16 + i] = static_cast<int8_t>((q[i] >> 4) - shift);
  }
}

// Formats of 32-value blocks: split(block, t) gives the integers, minimum(block) what is subtracted. All blocks of a chunk are split
// before any is scaled, since reading a vector back right after its two halves were written stalls.
template <int Bytes, class Split, class Minimum>
inline void decode_small_blocks(const uint8_t* __restrict b, float* __restrict o, int64_t n, Split split, Minimum minimum) {
  alignas(32) int8_t t[kChunk];
  while (n > 0) {
    const int64_t blocks = (n < kChunk ? n : kChunk) / 32;
    for (int64_t i = 0; i < blocks; ++i) split(b + Bytes * i, t + 32 * i);
    for (int64_t i = 0; i < blocks; ++i) scale_bytes<32>(t + 32 * i, load_half(b + Bytes * i), minimum(b + Bytes * i), o + 32 * i);
    n -= 32 * blocks;
    b += Bytes * blocks;
    o += 32 * blocks;
  }
}

inline float no_minimum(const uint8_t*) { return 0.0f; }

DLAB_DECODER decode_q4_0(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  decode_small_blocks<18>(b, o, n, [](const uint8_t* block, int8_t* t) { split_nibbles(block + 2, 8, t); }, no_minimum);
}

DLAB_DECODER decode_q4_1(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  const auto split = [](const uint8_t* block, int8_t* t) { split_nibbles(block + 4, 0, t); };
  decode_small_blocks<20>(b, o, n, split, [](const uint8_t* block) { return -load_half(block + 2); });
}

DLAB_DECODER decode_q5_0(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  const auto split = [](const uint8_t* __restrict block, int8_t* __restrict t) {
    uint32_t fifth;
    memcpy(&fifth, block + 2, 4);
    split_nibbles(block + 6, 16, t);
    for (int i = 0; i < 32; ++i) t[i] = static_cast<int8_t>(t[i] + static_cast<int>((fifth >> i) & 1u) * 16);
  };
  decode_small_blocks<22>(b, o, n, split, no_minimum);
}

// The j-th six-bit scale and minimum of a Q4_K or Q5_K block.
inline void scale_and_minimum(const uint8_t* s, int j, float& scale, float& minimum) {
  if (j < 4) {
    scale = static_cast<float>(s[j] & 63);
    minimum = static_cast<float>(s[j + 4] & 63);
  } else {
    scale = static_cast<float>((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
    minimum = static_cast<float>((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
  }
}

DLAB_DECODER decode_q4_k(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  alignas(32) int8_t t[64];
  for (; n > 0; n -= 256, b += 144, o += 256) {
    const float d = load_half(b), dmin = load_half(b + 2);
    for (int c = 0; c < 4; ++c) {
      const uint8_t* q = b + 16 + 32 * c;
      float s0, m0, s1, m1;
      scale_and_minimum(b + 4, 2 * c, s0, m0);
      scale_and_minimum(b + 4, 2 * c + 1, s1, m1);
      for (int l = 0; l < 32; ++l) {
        t[l] = static_cast<int8_t>(q[l] & 15);
        t[32 + l] = static_cast<int8_t>(q[l] >> 4);
      }
      scale_bytes<32>(t, d * s0, dmin * m0, o + 64 * c);
      scale_bytes<32>(t + 32, d * s1, dmin * m1, o + 64 * c + 32);
    }
  }
}

DLAB_DECODER decode_q5_k(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  alignas(32) int8_t t[64];
  for (; n > 0; n -= 256, b += 176, o += 256) {
    const float d = load_half(b), dmin = load_half(b + 2);
    const uint8_t* fifth = b + 16;
    for (int c = 0; c < 4; ++c) {
      const uint8_t* q = b + 48 + 32 * c;
      float s0, m0, s1, m1;
      scale_and_minimum(b + 4, 2 * c, s0, m0);
      scale_and_minimum(b + 4, 2 * c + 1, s1, m1);
      for (int l = 0; l < 32; ++l) {
        const uint8_t bits = static_cast<uint8_t>(fifth[l] >> (2 * c));
        t[l] = static_cast<int8_t>((q[l] & 15) | ((bits & 1) << 4));
        t[32 + l] = static_cast<int8_t>((q[l] >> 4) | ((bits & 2) << 3));
      }
      scale_bytes<32>(t, d * s0, dmin * m0, o + 64 * c);
      scale_bytes<32>(t + 32, d * s1, dmin * m1, o + 64 * c + 32);
    }
  }
}

DLAB_DECODER decode_q6_k(const uint8_t* __restrict b, float* __restrict o, int64_t n) {
  alignas(32) int8_t t[128];
  alignas(32) float values[128];
  for (; n > 0; n -= 256, b += 210, o += 256) {
    const float d = load_half(b + 208);
    const int8_t* scales = reinterpret_cast<const int8_t*>(b + 192);
    for (int g = 0; g < 2; ++g) {
      const uint8_t* low = b + 64 * g;
      const uint8_t* high = b + 128 + 32 * g;
      for (int l = 0; l < 32; ++l) {
        t[l] = static_cast<int8_t>(((low[l] & 15) | ((high[l] & 3) << 4)) - 32);
        t[32 + l] = static_cast<int8_t>(((low[32 + l] & 15) | ((high[l] & 12) << 2)) - 32);
        t[64 + l] = static_cast<int8_t>(((low[l] >> 4) | (high[l] & 48)) - 32);
        t[96 + l] = static_cast<int8_t>(((low[32 + l] >> 4) | ((high[l] & 192) >> 2)) - 32);
      }
      scale_bytes<128>(t, 1.0f, 0.0f, values);
      for (int j = 0; j < 8; ++j) {
        const float scale = d * static_cast<float>(scales[8 * g + j]);
        float* __restrict to = o + 128 * g + 16 * j;
#pragma GCC unroll 1
        for (int i = 0; i < 16; ++i) to[i] = scale * values[16 * j + i];
      }
    }
  }
}

void decode(int32_t dtype, const uint8_t* src, float* dst, int64_t n) {
  switch (dtype) {
    case DLAB_F32: return decode_f32(src, dst, n);
    case DLAB_F16: return decode_f16(src, dst, n);
    case DLAB_BF16: return decode_bf16(src, dst, n);
    case DLAB_Q8_0: return decode_q8_0(src, dst, n);
    case DLAB_Q4_0: return decode_q4_0(src, dst, n);
    case DLAB_Q4_1: return decode_q4_1(src, dst, n);
    case DLAB_Q5_0: return decode_q5_0(src, dst, n);
    case DLAB_Q4_K: return decode_q4_k(src, dst, n);
    case DLAB_Q5_K: return decode_q5_k(src, dst, n);
    case DLAB_Q6_K: return decode_q6_k(src, dst, n);
    default: return;
  }
}

// Bytes of kChunk values.
int64_t chunk_bytes(int32_t dtype) {
  switch (dtype) {
    case DLAB_F32: return 4 * kChunk;
    case DLAB_F16:
    case DLAB_BF16: return 2 * kChunk;
    case DLAB_Q8_0: return 34 * (kChunk / 32);
    case DLAB_Q4_0: return 18 * (kChunk / 32);
    case DLAB_Q4_1: return 20 * (kChunk / 32);
    case DLAB_Q5_0: return 22 * (kChunk / 32);
    case DLAB_Q4_K: return 144;
    case DLAB_Q5_K: return 176;
    case DLAB_Q6_K: return 210;
    default: return 0;
  }
}

#undef DLAB_DECODER

}  // namespace
}  // namespace dlab
