// Operations whose rows follow from the rows before them.
#include "each.h"
#include "reduce.h"
#include "sizes.h"

// The taps of one channel at one row; rows before the first are of the history.
struct Taps {
  device const float* x;
  device const float* history;
  device const float* w;
  long row, channel, channels, taps, dilation;
  float operator()(long k, float sum) const {
    const long at = row - dilation * (taps - 1 - k), reach = (taps - 1) * dilation;
    const float value = at < 0 ? history[(reach + at) * channels + channel] : x[at * channels + channel];
    return fma(value, w[channel * taps + k], sum);
  }
};

kernel void short_conv(device const float* x [[buffer(0)]], device const float* history [[buffer(1)]], device const float* w [[buffer(2)]],
                       device float* y [[buffer(3)]], constant sizes::ShortConv& n [[buffer(4)]], THIS_THREAD) {
  EACH(i, n.rows * n.channels) {
    const Taps taps = {x, history, w, i / n.channels, i % n.channels, n.channels, n.taps, n.dilation};
    y[i] = sum_in_lanes(n.taps, taps);
  }
}

// The taps in sequence, from the row itself back; rows before the block are 0.
kernel void dynamic_conv(device const float* x [[buffer(0)]], device const float* made [[buffer(1)]], device const float* base [[buffer(2)]],
                         device float* y [[buffer(3)]], constant sizes::DynamicConv& n [[buffer(4)]], THIS_THREAD) {
  EACH(i, n.rows * n.n) {
    const long row = i / n.n, c = i % n.n;
    const long own = (row * 2 + n.side) * n.taps * n.groups + c / (n.n / n.groups), fixed = n.side * n.taps * n.n + c;
    float sum = 0.0f;
    for (long j = 0; j < n.taps && j <= row; ++j) sum = fma(base[fixed + j * n.n] + made[own + j * n.groups], x[(row - j) * n.n + c], sum);
    y[i] = sum;
  }
}

// A thread owns one of the n columns of a head's state through all rows.
kernel void delta_state(device const float* start [[buffer(0)]], device const float* keys [[buffer(1)]], device const float* v [[buffer(2)]],
                        device const float* decays [[buffer(3)]], device const float* beta [[buffer(4)]], device float* y [[buffer(5)]],
                        constant sizes::Delta& n [[buffer(6)]], THIS_THREAD) {
  EACH(i, n.heads * n.n) {
    const long head = i / n.n, d = i % n.n, key_head = head / (n.heads / n.key_heads), state = n.depth * n.n;
    device const float* before = start + head * state + d;
    for (long r = 0; r < n.rows; ++r) {
      const long at = r * n.heads + head;
      const float kept = precise::exp(decays[at]);
      device const float* key = keys + (r * n.key_heads + key_head) * n.depth;
      device float* after = y + at * state + d;
      for (long k = 0; k < n.depth; ++k) after[k * n.n] = before[k * n.n] * kept;
      const Products products = {after, key, n.n, 1};
      const float step = (v[at * n.n + d] - sum_in_lanes(n.depth, products)) * beta[at];
      for (long k = 0; k < n.depth; ++k) after[k * n.n] = fma(key[k], step, after[k * n.n]);
      before = after;
    }
  }
}

kernel void delta_read(device const float* state [[buffer(0)]], device const float* q [[buffer(1)]], device float* y [[buffer(2)]],
                       constant sizes::Delta& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.rows * n.heads * n.n) {
    const long at = i / n.n, d = i % n.n, row = at / n.heads, head = at % n.heads;
    device const float* query = q + (row * n.key_heads + head / (n.heads / n.key_heads)) * n.depth;
    const Products products = {state + at * n.depth * n.n + d, query, n.n, 1};
    y[i] = sum_in_lanes(n.depth, products);
  }
}

kernel void block_mean(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant sizes::BlockMean& n [[buffer(2)]],
                       THIS_THREAD) {
  EACH(i, n.blocks * n.width) {
    const long first = i / n.width * n.ratio * n.width + i % n.width;
    float sum = 0.0f;
    for (long r = 0; r < n.ratio; ++r) sum += x[first + r * n.width];
    y[i] = sum / float(n.ratio);
  }
}
