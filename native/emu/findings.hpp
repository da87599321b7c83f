// What the emulator found: kind, what, where (file:line), which threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// State of the emulator: made before the statics of a program, destroyed after them, since those may use the device and ask for findings.
#define EMU_LASTING __attribute__((init_priority(102)))

namespace emu {

// A place in the source: of a runtime call or an intrinsic (file and line known), or of a memory access (known by its address in code).
struct Place {
  const char* file = nullptr;
  int line = 0;
  uint32_t code = 0;  // offset of the instruction in this shared object; 0 when file is set

  static Place at(const char* file, int line) { return {file, line, 0}; }
  static Place instruction(uint32_t code) { return {nullptr, 0, code}; }
  // "cuda/linear.cu:120"; resolved by addr2line when it is an instruction.
  std::string text() const;
};

// Kinds, as they are spelled in reports.
namespace kind {
inline constexpr const char* kRace = "race";                    // two unordered accesses, one of them a write
inline constexpr const char* kHazard = "hazard";                // host memory used while an asynchronous copy may still read or write it
inline constexpr const char* kBounds = "out-of-bounds";         // an access outside every live allocation
inline constexpr const char* kUninitialised = "uninitialised";  // a read of memory that nothing has written
inline constexpr const char* kDivergence = "divergent-sync";    // a barrier or a warp operation that not all of its threads reach
inline constexpr const char* kApi = "api";                      // a wrong call of the runtime
}  // namespace kind

struct Finding {
  std::string kind, text;           // one line, complete
  std::vector<std::string> places;  // file:line of both sides, the later access first
  uint64_t count = 1;               // how often the same places met
};

// Adds a finding, or counts it when the same kind was found at the same places before. At most kMaxFindings are kept.
void report(const char* kind, const std::vector<Place>& places, const std::string& text);
const std::vector<Finding>& findings();
void clear_findings();
// One JSON object per line: {"kind", "text", "places", "count"}.
std::string findings_text();

constexpr size_t kMaxFindings = 64;

}  // namespace emu
