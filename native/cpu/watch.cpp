/* What the lab's worker asks of the process it runs candidates in: the place of a fatal access, and the floating-point mode. Exported
 * beside the ABI of dlab.h, for native/watch.py only. */
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <ucontext.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "dlab.h"

extern "C" {
/* A buffer between guard pages: the mapping is begin .. end, the buffer's own bytes are start .. stop. */
struct dlab_watched {
  uint64_t begin, start, stop, end;
  char name[64];
};
DLAB_API int32_t dlab_watch(int32_t fd, const dlab_watched* table, int64_t length);
DLAB_API uint64_t dlab_fp_mode(void);
DLAB_API void dlab_set_fp_mode(uint64_t mode);
}

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr uint64_t kNearStack = 1 << 16;
constexpr size_t kSpare = size_t{256} << 20;

int report_fd = -1;
const dlab_watched* watched = nullptr;
int64_t watched_length = 0;
alignas(16) char alternate_stack[1 << 16];

struct Machine {
  uint64_t stack = 0;
  const char* access = "touched";
};

Machine machine_state(void* context) {
  Machine m;
#if defined(__linux__) && defined(__x86_64__)
  const auto* u = static_cast<const ucontext_t*>(context);
  m.stack = static_cast<uint64_t>(u->uc_mcontext.gregs[REG_RSP]);
  m.access = u->uc_mcontext.gregs[REG_ERR] & 2 ? "wrote" : "read";
#elif defined(__linux__) && defined(__aarch64__)
  m.stack = static_cast<const ucontext_t*>(context)->uc_mcontext.sp;
#else
  (void)context;
#endif
  return m;
}

/* Text built without the heap: snprintf is not promised to be safe here, so numbers are written by hand. */
struct Line {
  char text[512];
  size_t used = 0;
  void put(const char* s) {
    while (*s && used < sizeof text) text[used++] = *s++;
  }
  void put(uint64_t n) {
    char digits[24];
    int count = 0;
    do digits[count++] = static_cast<char>('0' + n % 10);
    while (n /= 10);
    while (count && used < sizeof text) text[used++] = digits[--count];
  }
};

const dlab_watched* owner(uint64_t address) {
  for (int64_t i = 0; i < watched_length; i++)
    if (watched[i].begin <= address && address < watched[i].end) return &watched[i];
  return nullptr;
}

void on_fatal(int signal, siginfo_t* info, void* context) {
  const int fd = report_fd;
  const bool fault = signal == SIGSEGV || signal == SIGBUS;
  const uint64_t address = fault ? reinterpret_cast<uint64_t>(info->si_addr) : 0;
  const Machine machine = machine_state(context);
  Line line;
  line.put("{\"fatal\":");
  line.put(static_cast<uint64_t>(signal));
  line.put(",\"address\":");
  line.put(address);
  line.put(",\"access\":\"");
  line.put(machine.access);
  line.put("\"");
  if (const dlab_watched* w = fault ? owner(address) : nullptr) {
    line.put(",\"buffer\":\"");
    line.put(w->name);
    line.put("\",\"bytes\":");
    line.put(address < w->start ? w->start - address : address >= w->stop ? address - w->stop + 1 : address - w->start);
    line.put(",\"side\":\"");
    line.put(address < w->start ? "before" : address >= w->stop ? "past" : "inside");
    line.put("\"");
  } else if (fault && machine.stack && address + kNearStack > machine.stack && address < machine.stack + kNearStack) {
    line.put(",\"stack\":1");
  }
  void* spare = mmap(nullptr, kSpare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (spare == MAP_FAILED)
    line.put(",\"exhausted\":1");
  else
    munmap(spare, kSpare);
  line.put("}\n");
  if (fd >= 0 && write(fd, line.text, line.used) < 0) report_fd = -1;
  struct sigaction usual = {};
  usual.sa_handler = SIG_DFL;
  sigaction(signal, &usual, nullptr);
  /* A fault happens again on return and ends the process with its own signal; a raised signal has to be raised again. */
  if (!fault) raise(signal);
}

}  // namespace

/* From now on a fatal signal of this process writes one JSON line to fd before it ends it: signal, address, and the watched buffer.
 * table: kept by the caller; entries may change at any time, one of all zeros is none. Calling thread gets a stack for the handler. */
int32_t dlab_watch(int32_t fd, const dlab_watched* table, int64_t length) {
  report_fd = fd;
  watched = table;
  watched_length = length;
  stack_t stack = {};
  stack.ss_sp = alternate_stack;
  stack.ss_size = sizeof alternate_stack;
  if (sigaltstack(&stack, nullptr)) return DLAB_E_STATE;
  struct sigaction action = {};
  action.sa_sigaction = on_fatal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals)
    if (sigaction(signal, &action, nullptr)) return DLAB_E_STATE;
  return DLAB_OK;
}

/* The calling thread's floating-point controls (rounding, flush to zero, masked exceptions) without its sticky exception flags. */
uint64_t dlab_fp_mode(void) {
#if defined(__x86_64__)
  return _mm_getcsr() & ~uint32_t{0x3f};
#elif defined(__aarch64__)
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

void dlab_set_fp_mode(uint64_t mode) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<uint32_t>(mode));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
  (void)mode;
#endif
}
