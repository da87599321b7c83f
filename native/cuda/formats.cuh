// Stored formats on the device: four consecutive values at a time.
//
// Scale times multiple is exact in f32 for every format, so the only rounding is the last subtraction of the formats with a minimum: the
// values are those of the format, bit for bit, whether or not the compiler fuses.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "dlab.h"

namespace dlab::gpu {

// Four bytes, byte i at bits 8i. Blocks of an even number of bytes lie on even addresses only.
__device__ __forceinline__ uint32_t four_bytes(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }
__device__ __forceinline__ uint32_t two_pairs(const uint8_t* p) {
  const auto* half_words = reinterpret_cast<const uint16_t*>(p);
  return half_words[0] | static_cast<uint32_t>(half_words[1]) << 16;
}

__device__ __forceinline__ float half_at(const uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
}

// Formats of single values. quad: values i .. i+3 of a row, 0 beyond its width.
struct F32 {
  static constexpr int kDtype = DLAB_F32;
  static __device__ __forceinline__ void quad(const uint8_t* row, int64_t i, int64_t width, float (&w)[4]) {
    const auto* p = reinterpret_cast<const float*>(row);
    for (int t = 0; t < 4; ++t) w[t] = i + t < width ? p[i + t] : 0.0f;
  }
};

struct F16 {
  static constexpr int kDtype = DLAB_F16;
  static __device__ __forceinline__ void quad(const uint8_t* row, int64_t i, int64_t width, float (&w)[4]) {
    const auto* p = reinterpret_cast<const __half*>(row);
    for (int t = 0; t < 4; ++t) w[t] = i + t < width ? __half2float(p[i + t]) : 0.0f;
  }
};

struct BF16 {
  static constexpr int kDtype = DLAB_BF16;
  static __device__ __forceinline__ void quad(const uint8_t* row, int64_t i, int64_t width, float (&w)[4]) {
    const auto* p = reinterpret_cast<const __nv_bfloat16*>(row);
    for (int t = 0; t < 4; ++t) w[t] = i + t < width ? __bfloat162float(p[i + t]) : 0.0f;
  }
};

// Formats of blocks: Block::four(block, i, w) decodes values i .. i+3 of one block.
template <class Block>
struct Blocks {
  static constexpr int kDtype = Block::kDtype;
  static __device__ __forceinline__ void quad(const uint8_t* row, int64_t i, int64_t width, float (&w)[4]) {
    if (i < width) {
      Block::four(row + i / Block::kValues * Block::kBytes, static_cast<int>(i % Block::kValues), w);
    } else {
      for (float& value : w) value = 0.0f;
    }
  }
};

struct Q8_0Block {
  static constexpr int kDtype = DLAB_Q8_0, kValues = 32, kBytes = 34;
  static __device__ __forceinline__ void four(const uint8_t* b, int i, float (&w)[4]) {
    const float d = half_at(b);
    const uint32_t q = two_pairs(b + 2 + i);
    for (int t = 0; t < 4; ++t) w[t] = d * static_cast<float>(static_cast<int8_t>(q >> (8 * t)));
  }
};

// Low nibbles are values 0..15 of a block, high nibbles 16..31.
__device__ __forceinline__ int nibble(uint32_t bytes, int t, int i) { return static_cast<int>(bytes >> (8 * t + (i < 16 ? 0 : 4)) & 15u); }

struct Q4_0Block {
  static constexpr int kDtype = DLAB_Q4_0, kValues = 32, kBytes = 18;
  static __device__ __forceinline__ void four(const uint8_t* b, int i, float (&w)[4]) {
    const float d = half_at(b);
    const uint32_t q = two_pairs(b + 2 + i % 16);
    for (int t = 0; t < 4; ++t) w[t] = d * static_cast<float>(nibble(q, t, i) - 8);
  }
};

struct Q4_1Block {
  static constexpr int kDtype = DLAB_Q4_1, kValues = 32, kBytes = 20;
  static __device__ __forceinline__ void four(const uint8_t* b, int i, float (&w)[4]) {
    const float d = half_at(b), m = half_at(b + 2);
    const uint32_t q = four_bytes(b + 4 + i % 16);
    for (int t = 0; t < 4; ++t) w[t] = d * static_cast<float>(nibble(q, t, i)) + m;
  }
};

struct Q5_0Block {
  static constexpr int kDtype = DLAB_Q5_0, kValues = 32, kBytes = 22;
  static __device__ __forceinline__ void four(const uint8_t* b, int i, float (&w)[4]) {
    const float d = half_at(b);
    const uint32_t fifth = two_pairs(b + 2) >> i, q = two_pairs(b + 6 + i % 16);
    for (int t = 0; t < 4; ++t) w[t] = d * static_cast<float>((nibble(q, t, i) | static_cast<int>(fifth >> t & 1u) << 4) - 16);
  }
};

// The j-th six-bit scale and minimum of a Q4_K or Q5_K block.
__device__ __forceinline__ void scale_and_minimum(const uint8_t* s, int j, float& scale, float& minimum) {
  if (j < 4) {
    scale = static_cast<float>(s[j] & 63);
    minimum = static_cast<float>(s[j + 4] & 63);
  } else {
    scale = static_cast<float>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    minimum = static_cast<float>((s[j + 4] >> 4) | (s[j] >> 6) << 4);
  }
}

struct Q4_KBlock {
  static constexpr int kDtype = DLAB_Q4_K, kValues = 256, kBytes = 144;
  static __device__ __forceinline__ void four(const uint8_t* b, int i, float (&w)[4]) {
    const int j = i / 32;
    float scale, minimum;
    scale_and_minimum(b + 4, j, scale, minimum);
    scale *= half_at(b);
    minimum *= half_at(b + 2);
    const uint32_t q = four_bytes(b + 16 + 32 * (i / 64) + i % 32) >> (4 * (j % 2));
    for (int t = 0; t < 4; ++t) w[t] = scale * static_cast<float>(q >> (8 * t) & 15u) - minimum;
  }
};

struct Q5_KBlock {
  static constexpr int kDtype = DLAB_Q5_K, kValues = 256, kBytes = 176;
  static __device__ __forceinline__ void four(const uint8_t* b, int i, float (&w)[4]) {
    const int j = i / 32;
    float scale, minimum;
    scale_and_minimum(b + 4, j, scale, minimum);
    scale *= half_at(b);
    minimum *= half_at(b + 2);
    const uint32_t q = four_bytes(b + 48 + 32 * (i / 64) + i % 32) >> (4 * (j % 2));
    const uint32_t fifth = four_bytes(b + 16 + i % 32) >> j;
    for (int t = 0; t < 4; ++t) {
      const uint32_t value = (q >> (8 * t) & 15u) | (fifth >> (8 * t) & 1u) << 4;
      w[t] = scale * static_cast<float>(value) - minimum;
    }
  }
};

struct Q6_KBlock {
  static constexpr int kDtype = DLAB_Q6_K, kValues = 256, kBytes = 210;
  static __device__ __forceinline__ void four(const uint8_t* b, int i, float (&w)[4]) {
    const int g = i / 128, part = i % 128 / 32, l = i % 32;
    const float scale = half_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
    const uint32_t low = two_pairs(b + 64 * g + 32 * (part % 2) + l) >> (4 * (part / 2));
    const uint32_t high = two_pairs(b + 128 + 32 * g + l) >> (2 * part);
    for (int t = 0; t < 4; ++t) {
      const int value = static_cast<int>((low >> (8 * t) & 15u) | (high >> (8 * t) & 3u) << 4);
      w[t] = scale * static_cast<float>(value - 32);
    }
  }
};

using Q8_0 = Blocks<Q8_0Block>;
using Q4_0 = Blocks<Q4_0Block>;
using Q4_1 = Blocks<Q4_1Block>;
using Q5_0 = Blocks<Q5_0Block>;
using Q4_K = Blocks<Q4_KBlock>;
using Q5_K = Blocks<Q5_KBlock>;
using Q6_K = Blocks<Q6_KBlock>;

// Calls visit(Format{}) for the format of a dtype that has been validated.
template <class Visit>
void with_format(int32_t dtype, Visit&& visit) {
  switch (dtype) {
    case DLAB_F32: return visit(F32{});
    case DLAB_F16: return visit(F16{});
    case DLAB_BF16: return visit(BF16{});
    case DLAB_Q8_0: return visit(Q8_0{});
    case DLAB_Q4_0: return visit(Q4_0{});
    case DLAB_Q4_1: return visit(Q4_1{});
    case DLAB_Q5_0: return visit(Q5_0{});
    case DLAB_Q4_K: return visit(Q4_K{});
    case DLAB_Q5_K: return visit(Q5_K{});
    case DLAB_Q6_K: return visit(Q6_K{});
    default: return;
  }
}

}  // namespace dlab::gpu
