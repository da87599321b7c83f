// Threads that follow a list of operations each, so that a test can make them meet, pass each other, or return. Nothing in it knows of the emulator.
//   barriers THREADS LIST...      the lists of equal groups of threads, of one length; '.' does nothing
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>

constexpr int kMost = 128;

__global__ void play(const char* lists, int length, int group, unsigned* out) {
  __shared__ unsigned box[kMost];
  const char* mine = lists + threadIdx.x / group * length;
  unsigned v = threadIdx.x;
  for (int i = 0; i < length; ++i) {
    switch (mine[i]) {
      case 'b': __syncthreads(); break;  // MARK first
      case 'B': __syncthreads(); break;  // MARK second
      case 'c': v += __syncthreads_count(1); break;  // MARK count
      case 'w': __syncwarp(); break;  // MARK warp
      case 's': v += __shfl_xor_sync(0xffffffffu, v, 1); break;  // MARK shuffle
      case 'u': v += __shfl_up_sync(0xffffffffu, v, -1); break;  // by 31: five bits of it count
      case 'W': box[threadIdx.x] = v; break;  // MARK write
      case 'R': v += box[(threadIdx.x + 33) % blockDim.x]; break;  // MARK read
      case 'A': atomicAdd(&box[0], 1u); break;
      case 'x': return;
      default: break;
    }
  }
  out[blockIdx.x * kMost + threadIdx.x] = v;
}

// Memory that is there before main and freed after it.
struct Output {
  unsigned* there;
  Output() { cudaMalloc(&there, 2 * kMost * sizeof(unsigned)); }
  ~Output() { cudaFree(there); }
} output;

int main(int argc, char** argv) {
  const int threads = atoi(argv[1]), groups = argc - 2, length = static_cast<int>(std::string(argv[2]).size());
  std::string lists;
  for (int i = 2; i < argc; ++i) lists += argv[i];
  char* there;
  cudaMalloc(&there, lists.size());
  cudaMemcpy(there, lists.data(), lists.size(), cudaMemcpyHostToDevice);
  cudaMemset(output.there, 0, 2 * kMost * sizeof(unsigned));
  play<<<2, threads>>>(there, length, threads / groups, output.there);
  unsigned here[kMost];
  if (const cudaError_t status = cudaMemcpy(here, output.there, sizeof here, cudaMemcpyDeviceToHost)) {
    printf("%s\n", cudaGetErrorString(status));
    return 1;
  }
  for (int t = 0; t < threads; ++t) printf("%u ", here[t]);
  if (getenv("FREE_TWICE")) cudaFree(output.there);
  return 0;
}
