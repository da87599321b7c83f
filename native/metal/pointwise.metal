// Operations on single values: one thread each, in strides of the grid; and copies of rows.
#include "each.h"
#include "sizes.h"

template <class Format>
kernel void gather(device const uchar* table [[buffer(0)]], device const int* ids [[buffer(1)]], device float* y [[buffer(2)]],
                   constant sizes::Gather& n [[buffer(3)]], THIS_THREAD) {
  const long quads = (n.width + 3) / 4;
  EACH(i, n.rows * quads) {
    const long r = i / quads, at = i % quads * 4, row = n.has_ids ? long(ids[r]) : r;
    const bool known = row >= 0 && row < n.table_rows;
    float4 w = known ? Format::quad(table + row * n.row_bytes, at, n.width) : float4(NAN);
    if (n.has_ids) w = w * n.scale;
    for (int t = 0; t < 4; ++t)
      if (at + t < n.width) y[r * n.width + at + t] = w[t];
  }
}

#define GATHER(name, Format) DLAB_INSTANCE("gather_" name, gather, Format)
DLAB_EACH_FORMAT(GATHER)

kernel void convert(device const uchar* x [[buffer(0)]], device uchar* y [[buffer(1)]], constant sizes::Convert& n [[buffer(2)]],
                    THIS_THREAD) {
  EACH(i, n.count) {
    const float value = value_at(x, n.from, i);
    if (n.to == kF16) reinterpret_cast<device half*>(y)[i] = half(value);
    else if (n.to == kBF16) reinterpret_cast<device ushort*>(y)[i] = to_bfloat(value);
    else reinterpret_cast<device float*>(y)[i] = value;
  }
}

// One thread per pair, and one per value that is not rotated.
kernel void rope(device const float* x [[buffer(0)]], device const float* table [[buffer(1)]], device float* y [[buffer(2)]],
                 constant sizes::Rope& n [[buffer(3)]], THIS_THREAD) {
  const long pairs = n.rotated / 2, items = pairs + n.dim - n.rotated, step = n.interleaved ? 1 : pairs;
  EACH(i, n.vectors * items) {
    const long vector = i / items, item = i % items, start = vector * n.dim;
    if (item >= pairs) {
      const long at = start + n.rotated + item - pairs;
      y[at] = x[at];
      continue;
    }
    const long entry = (vector / n.heads * pairs + item) * 2, low = start + (n.interleaved ? 2 * item : item);
    const float a = x[low], b = x[low + step], c = table[entry], s = table[entry + 1];
    y[low] = a * c - b * s;
    y[low + step] = b * c + a * s;
  }
}

kernel void gate(device const float* x [[buffer(0)]], device const float* g [[buffer(1)]], device float* y [[buffer(2)]],
                 constant sizes::Gate& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.count) {
    const float logit = g[i / n.per_logit];
    y[i] = x[i] * (n.softplus ? softplus(logit) : sigmoid(logit));
  }
}

kernel void swiglu(device const float* gates [[buffer(0)]], device const float* up [[buffer(1)]], device float* y [[buffer(2)]],
                   constant sizes::SwiGlu& n [[buffer(3)]], THIS_THREAD) {
  EACH(i, n.count) y[i] = (n.gelu ? gelu_tanh(gates[i]) : gates[i] * sigmoid(gates[i])) * up[i];
}

kernel void add(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]], device float* y [[buffer(2)]],
                constant long& count [[buffer(3)]], THIS_THREAD) {
  EACH(i, count) y[i] = a[i] + b[i];
}

kernel void softcap(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant sizes::Softcap& n [[buffer(2)]],
                    THIS_THREAD) {
  EACH(i, n.count) {
    const float scaled = x[i] * n.scale;
    y[i] = n.cap > 0.0f ? n.cap * precise::tanh(scaled / n.cap) : scaled;
  }
}

template <class Unit>
kernel void copy_rows(device const Unit* from [[buffer(0)]], device Unit* to [[buffer(1)]], constant sizes::Copy& n [[buffer(2)]],
                      THIS_THREAD) {
  EACH(i, n.rows * n.width) to[i / n.width * n.to_pitch + i % n.width] = from[i / n.width * n.from_pitch + i % n.width];
}

DLAB_INSTANCE("copy_rows_1", copy_rows, uchar)
DLAB_INSTANCE("copy_rows_16", copy_rows, uint4)
