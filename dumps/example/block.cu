// The first products of a DFlash block in CUDA, dumped with stage_dump.h: each stage is copied back from the device and recorded as it is there.
//
//     nvcc -I<folder of stage_dump.h> block.cu -o block && ./block <export>      <export>: parity case export --weights; writes <export>/dump
//
// It records the embedding rows, the first layer's norm and its three projections of every block; what a dump does not hold flows on in the
// comparison with its predicted noise.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "stage_dump.h"

namespace {

constexpr int kThreads = 64;

[[noreturn]] void die(const std::string& what) {
  fprintf(stderr, "block: %s\n", what.c_str());
  exit(2);
}

void check(cudaError_t status, const char* where) {
  if (status != cudaSuccess) die(std::string(where) + ": " + cudaGetErrorString(status));
}

std::string text_of(const std::string& path) {
  FILE* file = fopen(path.c_str(), "rb");
  if (!file) die(path + ": cannot be read");
  std::string text(1 << 20, 0);
  text.resize(fread(&text[0], 1, text.size(), file));
  fclose(file);
  return text;
}

// An .npy file of version 1.0 in C order: exactly `count` elements of T, whose NumPy name is `descr`.
template <class T>
std::vector<T> npy(const std::string& path, const char* descr, size_t count) {
  FILE* file = fopen(path.c_str(), "rb");
  unsigned char head[10];
  if (!file || fread(head, 1, 10, file) != 10 || memcmp(head, "\x93NUMPY\x01", 7)) die(path + ": not an .npy file of version 1");
  std::string header(head[8] + 256u * head[9], 0);
  std::vector<T> values(count);
  if (fread(&header[0], 1, header.size(), file) != header.size() || header.find(descr) == std::string::npos) die(path + ": another dtype");
  if (fread(values.data(), sizeof(T), count, file) != count || fgetc(file) != EOF) die(path + ": another shape than the geometry gives");
  fclose(file);
  return values;
}

double number(const std::string& table, const std::string& key) {
  const size_t at = ("\n" + table).find("\n" + key + "\t");
  if (at == std::string::npos) die(key + ": is not in geometry.tsv");
  return atof(table.c_str() + at + key.size() + 1);
}

// A buffer on the device.
template <class T>
struct Device {
  T* at = nullptr;
  size_t count;
  explicit Device(size_t n) : count(n) { check(cudaMalloc(reinterpret_cast<void**>(&at), n * sizeof(T)), "cudaMalloc"); }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    check(cudaMemcpy(at, values.data(), count * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(at); }
  std::vector<T> back() const {
    std::vector<T> values(count);
    check(cudaMemcpy(values.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost), "copy from the device");
    return values;
  }
};

__global__ void gather(const float* table, const long long* ids, float* x, int n) {
  for (int i = threadIdx.x; i < n; i += kThreads) x[blockIdx.x * n + i] = table[ids[blockIdx.x] * n + i];
}

// One block of threads per row; the squares are added in shared memory.
__global__ void rms_norm(const float* x, const float* w, float* y, int n, float eps) {
  __shared__ float sums[kThreads];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const float r = 1 / sqrtf(sums[0] / n + eps);
  for (int i = threadIdx.x; i < n; i += kThreads) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * r * w[i];
}

// One thread per output: y[row][out] = sum of x[row][k] w[out][k].
__global__ void linear(const float* x, const float* w, float* y, int n, int outputs) {
  const int out = blockIdx.y * kThreads + threadIdx.x;
  if (out >= outputs) return;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += x[blockIdx.x * n + k] * w[static_cast<size_t>(out) * n + k];
  y[blockIdx.x * outputs + out] = sum;
}

void put(stage_dump* dump, int step, const char* stage, const Device<float>& values, std::vector<int64_t> shape) {
  const char* two[] = {"row", "dim"};
  const char* three[] = {"row", "head", "dim"};
  const std::vector<float> host = values.back();
  const int rank = static_cast<int>(shape.size());
  if (stage_dump_put(dump, step, stage, 0, "f32", rank, shape.data(), nullptr, rank == 2 ? two : three, host.data())) die(dump->error);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: block EXPORTED-CASE\n"), 2;
  const std::string root = std::string(argv[1]) + "/", geometry = text_of(root + "geometry.tsv"), weights = root + "weights/";
  const int hidden = number(geometry, "hidden"), dim = number(geometry, "head_dim"), vocab = number(geometry, "vocab");
  const int heads[] = {static_cast<int>(number(geometry, "heads")), static_cast<int>(number(geometry, "kv_heads"))};
  const float eps = static_cast<float>(number(geometry, "dialect.eps"));
  const Device<float> embedding(npy<float>(weights + "embedding.npy", "<f4", size_t(vocab) * hidden));
  const Device<float> norm(npy<float>(weights + "L0.input_norm.npy", "<f4", hidden));
  stage_dump dump;
  const std::string about = text_of(root + "dump-case.json");
  if (stage_dump_open(&dump, (root + "dump").c_str(), about.c_str(), "{\"candidate\": \"example block in CUDA\"}")) die(dump.error);
  const std::string steps = text_of(root + "steps.tsv");
  for (size_t line = steps.find('\n'); line != std::string::npos && line + 1 < steps.size(); line = steps.find('\n', line + 1)) {
    int step = 0, rows = 0;
    long at = 0;
    char kind[16], file[256];
    if (sscanf(steps.c_str() + line + 1, "%d\t%15s\t%ld\t%d\t%255s", &step, kind, &at, &rows, file) != 5) die("steps.tsv: cannot be read");
    if (strcmp(kind, "propose")) continue;
    const std::vector<int64_t> read = npy<int64_t>(root + file, "<i8", rows);
    const Device<long long> ids(std::vector<long long>(read.begin(), read.end()));
    const Device<float> x(size_t(rows) * hidden), xn(size_t(rows) * hidden);
    gather<<<rows, kThreads>>>(embedding.at, ids.at, x.at, hidden);
    put(&dump, step, "draft.embed", x, {rows, hidden});
    rms_norm<<<rows, kThreads>>>(x.at, norm.at, xn.at, hidden, eps);
    put(&dump, step, "draft.L0.xn", xn, {rows, hidden});
    const char* names[] = {"q", "k", "v"};
    const char* stages[] = {"draft.L0.q_raw", "draft.L0.k_raw", "draft.L0.v"};
    for (int i = 0; i < 3; ++i) {
      const int outputs = heads[i > 0] * dim;
      const Device<float> w(npy<float>(weights + "L0." + names[i] + ".npy", "<f4", size_t(outputs) * hidden)), y(size_t(rows) * outputs);
      linear<<<dim3(rows, (outputs + kThreads - 1) / kThreads), kThreads>>>(xn.at, w.at, y.at, hidden, outputs);
      put(&dump, step, stages[i], y, {rows, heads[i > 0], dim});
    }
  }
  return stage_dump_close(&dump) ? 2 : 0;
}
