#include "fiber.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif

// Pushes the registers that a call preserves, saves the stack pointer in *save, takes `to` as the stack pointer and pops them again.
// Not ucontext: its swap makes a system call for the signal mask, a hundred times the cost.
extern "C" void emu_switch_stack(void** save, void* to) asm("emu_switch_stack");

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
emu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
asm(R"(
.text
.p2align 4
emu_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif

namespace emu {

namespace {

// What a first switch pops: zeros for the registers, then the entry as the return address.
void* first_frame(void* stack, void (*entry)()) {
  auto top = (reinterpret_cast<uintptr_t>(stack) + Fiber::kStackBytes) & ~uintptr_t{15};
  auto* sp = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  *--sp = nullptr;  // keeps the stack aligned as after a call
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
#else
  sp -= 20;
  memset(sp, 0, 160);
  sp[11] = reinterpret_cast<void*>(entry);  // x30
#endif
  return sp;
}

}  // namespace

void Fiber::start(void (*entry)()) {
  if (!stack_) {
    void* pages = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) abort();
    stack_ = pages;
    mprotect(stack_, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
  }
#ifdef EMU_ASAN
  // The frames of a thread that has ended were left without returning, with their zones around locals.
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
  own_ = first_frame(stack_, entry);
  fake_stack_ = nullptr;
}

Fiber::~Fiber() {
  if (stack_) munmap(stack_, kStackBytes);
}

void Fiber::resume() {
#ifdef EMU_ASAN
  __sanitizer_start_switch_fiber(&scheduler_fake_, stack_, kStackBytes);
#endif
  emu_switch_stack(&scheduler_, own_);
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(scheduler_fake_, nullptr, nullptr);
#endif
}

void Fiber::entered() {
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom_, &scheduler_bytes_);
#endif
}

void Fiber::suspend([[maybe_unused]] bool last) {
#ifdef EMU_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, scheduler_bottom_, scheduler_bytes_);
#endif
  emu_switch_stack(&own_, scheduler_);
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_bottom_, &scheduler_bytes_);
#endif
}

}  // namespace emu
