// A DFlash drafter in CUDA: it runs the blocks of an exported case (parity case export --weights) and dumps every stage with stage_dump.h, copied
// back from the device as it is there.
//
//     nvcc -std=c++17 -O2 -I<export> block.cu -o block && ./block <export>        writes <export>/dump
//
// The generic drafter: q/k norms, neox rope, causal or bidirectional block, an optional window (W_LT). What it does not do it refuses.
// Plain f32; nvcc fuses products into sums (parity compare --arithmetic f32,fma=1).
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exported_case.hpp"
#include "stage_dump.h"

constexpr int kThreads = 64;  // of every block

// blockIdx.x is the row, and blockIdx.y the head where there are heads.
namespace kernels {

// All threads' values combined in pairs; every thread gets the result. part: shared memory of kThreads values.
template <class Combine>
__device__ float reduce(float mine, float* part, Combine combine) {
  part[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] = combine(part[threadIdx.x], part[threadIdx.x + half]);
    __syncthreads();
  }
  const float all = part[0];
  __syncthreads();  // before the next reduction writes to part
  return all;
}

__global__ void gather(const float* table, const int64_t* ids, float* x, int n) {
  for (int i = threadIdx.x; i < n; i += kThreads) x[blockIdx.x * n + i] = table[ids[blockIdx.x] * n + i];
}

__global__ void rms_norm(const float* x, const float* w, float* y, int n, float eps) {
  __shared__ float part[kThreads];
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += x[i] * x[i];
  sum = reduce(sum, part, [](float a, float b) { return a + b; });
  const float r = 1 / sqrtf(sum / n + eps);
  for (int i = threadIdx.x; i < n; i += kThreads) y[i] = x[i] * r * w[i];
}

// y[row][o] = sum of x[row][i] w[o][i]; blockIdx.y counts groups of outputs.
__global__ void linear(const float* x, const float* w, float* y, int n, int outputs) {
  const int o = blockIdx.y * kThreads + threadIdx.x;
  if (o >= outputs) return;
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[blockIdx.x * n + i] * w[o * n + i];
  y[blockIdx.x * outputs + o] = sum;
}

// Turns the pairs (i, i + rotary / 2) of a head; the rest of it stays. The first row is at position `at`.
__global__ void rope(const float* x, float* y, int dim, int rotary, double theta, int at) {
  const int head = (blockIdx.x * gridDim.y + blockIdx.y) * dim, half = rotary / 2;
  x += head;
  y += head;
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    const double angle = (at + static_cast<int>(blockIdx.x)) * pow(theta, -2.0 * (i % half) / rotary);
    const float c = static_cast<float>(cos(angle)), s = static_cast<float>(sin(angle));
    y[i] = i >= rotary ? x[i] : i < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s;
  }
}

struct Mask {
  bool causal;
  int window;  // 0: none
  __device__ bool sees(int query, int key) const { return (!causal || key <= query) && (!window || abs(query - key) < window); }
};

// Cell j is position j; the rows of the block are the last cells. k, v: [cell][kv_heads][dim].
__global__ void attention(const float* q, const float* k, const float* v, float* y, int kv_heads, int dim, int at, int cells, Mask mask,
                          float scale) {
  extern __shared__ float p[];  // one for each cell
  __shared__ float part[kThreads];
  const int heads = gridDim.y, width = kv_heads * dim, shared_by = heads / kv_heads;
  const int mine = (blockIdx.x * heads + blockIdx.y) * dim, theirs = blockIdx.y / shared_by * dim;
  float top = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < cells; j += kThreads) {
    float score = 0;
    for (int i = 0; i < dim; ++i) score += q[mine + i] * k[j * width + theirs + i];
    p[j] = mask.sees(at + blockIdx.x, j) ? score * scale : -INFINITY;
    top = fmaxf(top, p[j]);
  }
  top = reduce(top, part, [](float a, float b) { return fmaxf(a, b); });
  for (int j = threadIdx.x; j < cells; j += kThreads) sum += p[j] = expf(p[j] - top);
  sum = reduce(sum, part, [](float a, float b) { return a + b; });  // behind its barriers all of p is there
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    float mixed = 0;
    for (int j = 0; j < cells; ++j) mixed += p[j] * v[j * width + theirs + i];
    y[mine + i] = mixed / sum;
  }
}

__global__ void add(const float* x, const float* y, float* z, int n) {
  for (int i = threadIdx.x; i < n; i += kThreads) z[blockIdx.x * n + i] = x[blockIdx.x * n + i] + y[blockIdx.x * n + i];
}

__global__ void swiglu(const float* gate, const float* up, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float g = gate[blockIdx.x * n + i];
    y[blockIdx.x * n + i] = g / (1 + expf(-g)) * up[blockIdx.x * n + i];
  }
}

// The first of the largest.
__global__ void argmax(const float* x, int64_t* pick, int n) {
  __shared__ int best[kThreads];
  x += blockIdx.x * n;
  int mine = 0;
  for (int i = threadIdx.x; i < n; i += kThreads)
    if (x[i] > x[mine]) mine = i;
  best[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x) return;
  for (int t = 1; t < kThreads; ++t)
    if (x[best[t]] > x[mine] || (x[best[t]] == x[mine] && best[t] < mine)) mine = best[t];
  pick[blockIdx.x] = mine;
}

}  // namespace kernels

namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) die(cudaGetErrorString(status));
}

template <class T>
std::shared_ptr<T> on_device(size_t count) {
  T* p = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&p), count * sizeof(T)));
  return std::shared_ptr<T>(p, [](T* q) { cudaFree(q); });
}

template <class T>
std::shared_ptr<T> on_device(const std::vector<T>& values) {
  const std::shared_ptr<T> p = on_device<T>(values.size());
  check(cudaMemcpy(p.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

// Rows on the device: [row][dim], or [row][head][dim] where there are heads.
struct Rows {
  int rows, heads, dim;
  std::shared_ptr<float> data;
  int width() const { return heads ? heads * dim : dim; }
  // `count` rows from `first` on, in place.
  Rows part(int first, int count) const { return {count, heads, dim, {data, data.get() + first * width()}}; }
};

Rows rows_of(int rows, int heads, int dim) { return {rows, heads, dim, on_device<float>(static_cast<size_t>(rows) * (heads ? heads * dim : dim))}; }

struct Cells {
  Rows k, v;
};

class Drafter {
 public:
  Drafter(const std::string& folder, int most_cells) : root_(folder), g_(read_geometry(folder + "geometry.tsv")) {
    for (int l = 0; l < g_.layers; ++l) cells_.push_back({rows_of(most_cells, g_.kv_heads, g_.dim), rows_of(most_cells, g_.kv_heads, g_.dim)});
    check(cudaStreamCreate(&stream_));
    const std::string about = text_of(root_ + "dump-case.json");
    if (stage_dump_open(&dump_, (root_ + "dump").c_str(), about.c_str(), "{\"candidate\": \"example engine in CUDA\"}")) die(dump_.error);
  }

  void close() {
    check(cudaStreamDestroy(stream_));
    if (stage_dump_close(&dump_)) die(dump_.error);
  }

  void run(const Step& s) {
    step_ = s.number;
    if (s.kind == "append") {
      if (s.at != committed_) die(s.file + ": this engine does not roll back");
      append({s.rows, 0, g_.taps, on_device(npy<float>(root_ + s.file, "<f4", static_cast<size_t>(s.rows) * g_.taps))});
    } else if (s.kind == "propose") {
      propose(npy<int64_t>(root_ + s.file, "<i8", s.rows), s.at);
    } else {
      die(s.kind + ": not a step of a drafter");
    }
  }

 private:
  // The features of committed rows become cells of every layer.
  void append(const Rows& features) {
    put("draft.taps", features);
    const Rows fused = linear("draft.fc", features, "fc", 0, g_.hidden), ctx = norm("draft.ctx", fused, "hidden_norm");
    for (int l = 0; l < g_.layers; ++l) fill_cells(l, "draft.L" + std::to_string(l) + ".ctx.", ctx, committed_);
    committed_ += features.rows;
  }

  // A block at position `at`: its cells lie behind the committed ones and are written over by the next rows.
  void propose(const std::vector<int64_t>& ids, int at) {
    const int rows = static_cast<int>(ids.size());
    const auto table = weight("embedding", g_.vocab, g_.hidden);
    const auto ids_there = on_device(ids), picks = on_device<int64_t>(rows);
    Rows x = rows_of(rows, 0, g_.hidden);
    kernels::gather<<<rows, kThreads, 0, stream_>>>(table.get(), ids_there.get(), x.data.get(), g_.hidden);
    put("draft.embed", x);
    for (int l = 0; l < g_.layers; ++l) x = layer(l, x, at);
    const Rows logits = linear("draft.logits", norm("draft.final_norm", x, "norm"), "target_head", 0, g_.vocab);
    kernels::argmax<<<rows, kThreads, 0, stream_>>>(logits.data.get(), picks.get(), g_.vocab);
    put("draft.pick", "i64", picks.get(), sizeof(int64_t), {rows});
  }

  Rows layer(int l, const Rows& x, int at) {
    const std::string stage = "draft.L" + std::to_string(l) + ".", w = "L" + std::to_string(l) + ".";
    const Rows xn = norm(stage + "xn", x, w + "input_norm");
    const Rows q = linear(stage + "q_raw", xn, w + "q", g_.heads, g_.dim);
    const Rows qr = rope(stage + "q_rope", norm(stage + "q_norm", q, w + "q_norm"), at);
    fill_cells(l, stage, xn, at);
    put(stage + "k_cells", cells_[l].k.part(0, committed_ + x.rows));
    put(stage + "v_cells", cells_[l].v.part(0, committed_ + x.rows));
    const Rows a = attention(stage + "attn", qr, l, at);
    const Rows h = add(stage + "h_attn", x, linear(stage + "o", a, w + "o", 0, g_.hidden));
    const Rows xm = norm(stage + "xn_mlp", h, w + "post_norm");
    const Rows gate = linear(stage + "mlp_gate", xm, w + "gate", 0, g_.inner), up = linear(stage + "mlp_up", xm, w + "up", 0, g_.inner);
    const Rows act = rows_of(x.rows, 0, g_.inner);
    kernels::swiglu<<<x.rows, kThreads, 0, stream_>>>(gate.data.get(), up.data.get(), act.data.get(), g_.inner);
    put(stage + "mlp_act", act);
    return add(stage + "h_mlp", h, linear(stage + "mlp_down", act, w + "down", 0, g_.hidden));
  }

  // Keys and values of rows at positions from `at` on, into the cells behind the committed ones.
  void fill_cells(int l, const std::string& stage, const Rows& x, int at) {
    const std::string w = "L" + std::to_string(l) + ".";
    const Rows k = linear(stage + "k_raw", x, w + "k", g_.kv_heads, g_.dim);
    rope(stage + "k_rope", norm(stage + "k_norm", k, w + "k_norm"), at, cells_[l].k.part(committed_, x.rows));
    linear(stage + "v", x, w + "v", g_.kv_heads, g_.dim, cells_[l].v.part(committed_, x.rows));
  }

  // The operations: each is launched and its result recorded. `y`: where the result goes, if not into memory of its own.

  Rows norm(const std::string& stage, const Rows& x, const std::string& w) {
    const Rows y = rows_of(x.rows, x.heads, x.dim);
    kernels::rms_norm<<<x.rows * std::max(x.heads, 1), kThreads, 0, stream_>>>(x.data.get(), weight(w, 1, x.dim).get(), y.data.get(), x.dim, g_.eps);
    return put(stage, y);
  }

  Rows linear(const std::string& stage, const Rows& x, const std::string& w, int heads, int dim, Rows y = {}) {
    if (!y.data) y = rows_of(x.rows, heads, dim);
    const dim3 grid(x.rows, (y.width() + kThreads - 1) / kThreads);
    kernels::linear<<<grid, kThreads, 0, stream_>>>(x.data.get(), weight(w, y.width(), x.width()).get(), y.data.get(), x.width(), y.width());
    return put(stage, y);
  }

  Rows rope(const std::string& stage, const Rows& x, int at, Rows y = {}) {
    if (!y.data) y = rows_of(x.rows, x.heads, x.dim);
    kernels::rope<<<dim3(x.rows, x.heads), kThreads, 0, stream_>>>(x.data.get(), y.data.get(), x.dim, g_.rotary, g_.theta, at);
    return put(stage, y);
  }

  Rows attention(const std::string& stage, const Rows& q, int l, int at) {
    const Rows y = rows_of(q.rows, q.heads, q.dim);
    const int cells = committed_ + q.rows;
    const kernels::Mask mask{g_.causal[2 * l] == '1', g_.sliding[2 * l] == '1' ? g_.window : 0};
    kernels::attention<<<dim3(q.rows, q.heads), kThreads, cells * sizeof(float), stream_>>>(
        q.data.get(), cells_[l].k.data.get(), cells_[l].v.data.get(), y.data.get(), g_.kv_heads, g_.dim, at, cells, mask, g_.scale);
    return put(stage, y);
  }

  Rows add(const std::string& stage, const Rows& x, const Rows& y) {
    const Rows z = rows_of(x.rows, 0, x.dim);
    kernels::add<<<x.rows, kThreads, 0, stream_>>>(x.data.get(), y.data.get(), z.data.get(), x.dim);
    return put(stage, z);
  }

  // Decoded once and kept on the device.
  std::shared_ptr<float> weight(const std::string& name, int outputs, int inputs) {
    auto& kept = weights_[name];
    if (!kept) kept = on_device(npy<float>(root_ + "weights/" + name + ".npy", "<f4", static_cast<size_t>(outputs) * inputs));
    return kept;
  }

  const Rows& put(const std::string& stage, const Rows& x) {
    if (x.heads) put(stage, "f32", x.data.get(), sizeof(float), {x.rows, x.heads, x.dim});
    else put(stage, "f32", x.data.get(), sizeof(float), {x.rows, x.dim});
    return x;
  }

  // The copy runs behind the kernels of the stream and is waited for before its bytes are written.
  void put(const std::string& stage, const char* dtype, const void* there, size_t item, const std::vector<int64_t>& shape) {
    if (!stage_dump_wants(&dump_, step_, stage.c_str())) return;
    size_t bytes = item;
    for (const int64_t n : shape) bytes *= n;
    void* here = nullptr;
    check(cudaGetLastError());  // of the launches
    check(cudaMallocHost(&here, bytes));
    check(cudaMemcpyAsync(here, there, bytes, cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    const int rank = static_cast<int>(shape.size());
    if (stage_dump_put(&dump_, step_, stage.c_str(), 0, dtype, rank, shape.data(), nullptr, nullptr, here)) die(dump_.error);
    check(cudaFreeHost(here));
  }

  std::string root_;
  Geometry g_;
  cudaStream_t stream_ = nullptr;
  stage_dump dump_;
  int step_ = 0, committed_ = 0;
  std::vector<Cells> cells_;  // by layer
  std::map<std::string, std::shared_ptr<float>> weights_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: block EXPORTED-CASE\n"), 2;
  const std::string root = std::string(argv[1]) + "/";
  const std::vector<Step> steps = read_steps(root + "steps.tsv");
  int cells = 0;
  for (const Step& s : steps) cells = std::max(cells, s.at + s.rows);
  Drafter drafter(root, cells);
  for (const Step& s : steps) drafter.run(s);
  drafter.close();
}
