// What a lab, or anyone, calls in an emulated library beside its own interface. Names and types are part of native/emulation.py.
#include <cstring>

#include "findings.hpp"
#include "runtime.hpp"
#include "shadow.hpp"

#define EMU_API extern "C" __attribute__((visibility("default")))

// 0 when the text names no schedule: eager, late, or a number.
EMU_API int emu_set_schedule(const char* text) { return emu::set_schedule(text); }

// Seed of the order of blocks and threads; 0: by number.
EMU_API void emu_set_order(unsigned long long seed) { emu::set_order(seed); }

// 0: accesses are not checked, which is several times faster. On at first.
EMU_API void emu_set_checking(int on) { emu::checking = on != 0; }

// One JSON object per line, as many bytes of them as fit; returns the bytes of the whole text, without a final 0.
EMU_API unsigned long long emu_findings(char* buffer, unsigned long long capacity) {
  const std::string text = emu::findings_text();
  if (buffer && capacity) {
    const size_t n = text.size() < capacity - 1 ? text.size() : capacity - 1;
    memcpy(buffer, text.data(), n);
    buffer[n] = 0;
  }
  return text.size();
}

EMU_API void emu_clear_findings() { emu::clear_findings(); }
