// One thread per value, in strides of the grid, and the functions that such kernels share.
#pragma once

#include "formats.h"

// i = this thread's values among count
#define EACH(i, count) for (long i = thread_index; i < (count); i += threads)
#define THIS_THREAD uint thread_index [[thread_position_in_grid]], uint threads [[threads_per_grid]]

// 1 / (1 + exp(-x)) without overflow, relatively accurate on both sides.
static inline float sigmoid(float x) {
  const float e = precise::exp(-fabs(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// log(1 + e), relatively accurate for small e too: what 1 + e loses of e is the same in log and in the difference.
static inline float log_one_plus(float e) {
  const float u = 1.0f + e;
  return u == 1.0f ? e : precise::log(u) * (e / (u - 1.0f));
}

// log(1 + exp(x)) without overflow.
static inline float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log_one_plus(precise::exp(-fabs(x))); }

// x * sigmoid(2z): gelu-tanh without the cancellation in 1 + tanh(z).
static inline float gelu_tanh(float x) {
  const float z = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * sigmoid(2.0f * z);
}
