/* The CPU library under another name, which misbehaves in the second SwiGLU (or product) as the environment says. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <stdexcept>
#include <thread>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "dlab.h"

static void* cpu() {
  static void* handle = dlopen(CPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return handle;
}
template <class F>
static F real(F, const char* name) {
  return reinterpret_cast<F>(dlsym(cpu(), name));
}
#define REAL(name) real(&name, #name)

static bool asked(const char* deed) {
  const char* chosen = getenv("MISBEHAVE");
  return chosen && !strcmp(chosen, deed);
}

__attribute__((noinline)) static int endless(int n) {
  volatile char frame[4096];
  frame[n % 4096] = static_cast<char>(n);
  return endless(n + 1) + frame[(n * 7) % 4096];
}

static void leave(bool daemon) {
  if (fork()) return;
  if (daemon) {
    setsid();
    if (fork()) _exit(0);
  }
  for (;;) pause();
}

static int32_t misbehave(const dlab_tensor* in, dlab_tensor* y) {
  float* out = static_cast<float*>(y->data);
  float* given = static_cast<float*>(in->data);
  const int64_t n = y->shape[0] * y->shape[1];
  if (asked("wild pointer")) *reinterpret_cast<volatile int*>(size_t{24}) = 1;
  if (asked("abort")) abort();
  if (asked("exit 0")) exit(0);
  if (asked("exit 2")) exit(2);
  if (asked("_exit 0")) _exit(0);
  if (asked("throw")) throw std::runtime_error("no such kernel");
  if (asked("throw in a thread")) std::thread([] { throw std::runtime_error("no such stream"); }).join();
  if (asked("recursion")) return endless(1) == 3;
  if (asked("bad_alloc")) for (;;) memset(new char[size_t{64} << 20], 1, 64);
  if (asked("unchecked malloc")) for (;;) memset(malloc(size_t{64} << 20), 1, 64);
  if (asked("no memory, said so")) return DLAB_E_NOMEM;
  if (asked("hang")) for (;;) pause();
  if (asked("trap")) __builtin_trap();
  if (asked("kill itself")) kill(getpid(), SIGKILL);
  if (asked("one past")) out[n] = 1;
  if (asked("page past")) out[n + 100] = 1;
  if (asked("one before")) out[-1] = 1;
  if (asked("page before")) out[-2000] = 1;
  if (asked("past an input")) given[n] = 1;
  if (asked("read past")) out[0] += given[n + 64];
  if (asked("input changed")) given[3] += 1;
  if (asked("child")) leave(false);
  if (asked("daemon")) leave(true);
  if (asked("stderr closed")) close(2);
  if (asked("stdout replaced")) dup2(open("/dev/zero", O_RDONLY), 1);
#if defined(__x86_64__)
  if (asked("subnormals flushed")) _mm_setcsr(_mm_getcsr() | 0x8040);
  if (asked("rounding down")) _mm_setcsr(_mm_getcsr() | 0x2000);
#endif
  if (asked("uninitialised")) out[n - 1] += static_cast<float>(static_cast<unsigned char*>(malloc(4096))[1024]);
  if (asked("failure")) return DLAB_E_INTERNAL;
  if (asked("dump removed") && system("rm -rf \"$DUMP_FOLDER\"")) abort();
  return DLAB_OK;
}

extern "C" {
int32_t dlab_get_info(dlab_info* out) {
  const int32_t status = REAL(dlab_get_info)(out);
  out->name = "misbehaving";
  out->flags = DLAB_CAP_OPS;
  return status;
}
int32_t dlab_swiglu(dlab_ctx* ctx, const dlab_tensor* gate, const dlab_tensor* up, int32_t act, dlab_tensor* y) {
  static int calls = 0;
  if (asked("nothing written") && calls) return DLAB_OK;
  const int32_t status = REAL(dlab_swiglu)(ctx, gate, up, act, y);
  return status || ++calls != 2 ? status : misbehave(gate, y);
}
int32_t dlab_linear(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, const dlab_tensor* bias, dlab_tensor* y) {
  static int calls = 0;
  if (asked("weight changed") && ++calls == 4) static_cast<char*>(w->data)[5] ^= 1;
  const int32_t status = REAL(dlab_linear)(ctx, x, w, bias, y);
  if (asked("race") && ++calls == 4) static_cast<float*>(y->data)[y->shape[1] + 1] += 1e-3f * static_cast<float>(getpid() % 997 + 1);
  return status;
}
#define FORWARD(name, parameters, arguments) \
  int32_t name parameters { return REAL(name) arguments; }
FORWARD(dlab_layout, (const char* t, const char* f, int64_t* s, int64_t* o), (t, f, s, o))
FORWARD(dlab_open, (const char* o, dlab_ctx** c), (o, c))
void dlab_close(dlab_ctx* c) { REAL(dlab_close)(c); }
const char* dlab_last_error(dlab_ctx* c) { return REAL(dlab_last_error)(c); }
FORWARD(dlab_rms_norm, (dlab_ctx* c, const dlab_tensor* x, const dlab_tensor* w, double e, double o, int32_t g, dlab_tensor* y), (c, x, w, e, o, g, y))
FORWARD(dlab_rope, (dlab_ctx* c, const dlab_tensor* x, const int64_t* p, const double* f, int32_t r, int32_t s, double m, dlab_tensor* y), (c, x, p, f, r, s, m, y))
FORWARD(dlab_attention, (dlab_ctx* c, const dlab_tensor* q, const dlab_tensor* k, const dlab_tensor* v, const uint8_t* m, double s, const dlab_tensor* b, dlab_tensor* y), (c, q, k, v, m, s, b, y))
FORWARD(dlab_gate, (dlab_ctx* c, const dlab_tensor* x, const dlab_tensor* g, int32_t k, dlab_tensor* y), (c, x, g, k, y))
FORWARD(dlab_add, (dlab_ctx* c, const dlab_tensor* a, const dlab_tensor* b, dlab_tensor* y), (c, a, b, y))
FORWARD(dlab_gather, (dlab_ctx* c, const dlab_tensor* t, const int32_t* i, int32_t n, double s, dlab_tensor* y), (c, t, i, n, s, y))
FORWARD(dlab_top2, (dlab_ctx* c, const dlab_tensor* x, int32_t* i, float* v), (c, x, i, v))
FORWARD(dlab_softcap, (dlab_ctx* c, const dlab_tensor* x, double s, double k, dlab_tensor* y), (c, x, s, k, y))
}
