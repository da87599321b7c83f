// The calls that -fsanitize=thread puts before every access to memory, answered by the emulator instead of by ThreadSanitizer.
#include <cstring>

#include "shadow.hpp"

#define EMU_HOOK extern "C" __attribute__((visibility("hidden"))) void
#define EMU_ACCESS(name, bytes, write) \
  EMU_HOOK __tsan_##name(void* p) { emu::access(p, bytes, write, __builtin_return_address(0)); }

EMU_ACCESS(read1, 1, false)
EMU_ACCESS(read2, 2, false)
EMU_ACCESS(read4, 4, false)
EMU_ACCESS(read8, 8, false)
EMU_ACCESS(read16, 16, false)
EMU_ACCESS(write1, 1, true)
EMU_ACCESS(write2, 2, true)
EMU_ACCESS(write4, 4, true)
EMU_ACCESS(write8, 8, true)
EMU_ACCESS(write16, 16, true)
EMU_ACCESS(unaligned_read2, 2, false)
EMU_ACCESS(unaligned_read4, 4, false)
EMU_ACCESS(unaligned_read8, 8, false)
EMU_ACCESS(unaligned_read16, 16, false)
EMU_ACCESS(unaligned_write2, 2, true)
EMU_ACCESS(unaligned_write4, 4, true)
EMU_ACCESS(unaligned_write8, 8, true)
EMU_ACCESS(unaligned_write16, 16, true)
EMU_ACCESS(volatile_read1, 1, false)
EMU_ACCESS(volatile_read2, 2, false)
EMU_ACCESS(volatile_read4, 4, false)
EMU_ACCESS(volatile_read8, 8, false)
EMU_ACCESS(volatile_write1, 1, true)
EMU_ACCESS(volatile_write2, 2, true)
EMU_ACCESS(volatile_write4, 4, true)
EMU_ACCESS(volatile_write8, 8, true)

EMU_HOOK __tsan_read_range(void* p, unsigned long bytes) { emu::access(p, bytes, false, __builtin_return_address(0)); }
EMU_HOOK __tsan_write_range(void* p, unsigned long bytes) { emu::access(p, bytes, true, __builtin_return_address(0)); }
EMU_HOOK __tsan_init() {}
EMU_HOOK __tsan_func_entry(void*) {}
EMU_HOOK __tsan_func_exit() {}
EMU_HOOK __tsan_vptr_update(void**, void*) {}
EMU_HOOK __tsan_vptr_read(void**) {}

// Copies that stay calls in instrumented code are accesses too; cuda_emu.hpp points memcpy and memset here.
namespace emu {

void* copy_bytes(void* to, const void* from, size_t bytes) {
  access(from, bytes, false, __builtin_return_address(0));
  access(to, bytes, true, __builtin_return_address(0));
  return memmove(to, from, bytes);
}

void* fill_bytes(void* to, int value, size_t bytes) {
  access(to, bytes, true, __builtin_return_address(0));
  return memset(to, value, bytes);
}

}  // namespace emu

// std::atomic of host code in the same files.
#define EMU_ATOMIC(bits, type)                                                                                                             \
  extern "C" __attribute__((visibility("hidden"))) type __tsan_atomic##bits##_load(const volatile type* p, int) {                           \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                                           \
  }                                                                                                                                        \
  EMU_HOOK __tsan_atomic##bits##_store(volatile type* p, type v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }                         \
  EMU_FETCH(bits, type, exchange, exchange_n)                                                                                              \
  EMU_FETCH(bits, type, fetch_add, fetch_add)                                                                                              \
  EMU_FETCH(bits, type, fetch_sub, fetch_sub)                                                                                              \
  EMU_FETCH(bits, type, fetch_and, fetch_and)                                                                                              \
  EMU_FETCH(bits, type, fetch_or, fetch_or)                                                                                                \
  EMU_FETCH(bits, type, fetch_xor, fetch_xor)                                                                                              \
  extern "C" __attribute__((visibility("hidden"))) int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* want, type v, \
                                                                                                     int, int) {                           \
    return __atomic_compare_exchange_n(p, want, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                             \
  }
#define EMU_FETCH(bits, type, name, builtin)                                                                           \
  extern "C" __attribute__((visibility("hidden"))) type __tsan_atomic##bits##_##name(volatile type* p, type v, int) { \
    return __atomic_##builtin(p, v, __ATOMIC_SEQ_CST);                                                                 \
  }

EMU_ATOMIC(8, uint8_t)
EMU_ATOMIC(16, uint16_t)
EMU_ATOMIC(32, uint32_t)
EMU_ATOMIC(64, uint64_t)
EMU_HOOK __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
