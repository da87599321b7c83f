// Linked to a program, it takes the schedule from EMU_SCHEDULE (eager, late, a number) and the order of blocks and threads from EMU_ORDER (a
// number), and prints what the emulator found when the program ends. A library is asked from outside instead.
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" int emu_set_schedule(const char* text);
extern "C" void emu_set_order(unsigned long long seed);
extern "C" unsigned long long emu_findings(char* buffer, unsigned long long capacity);

namespace {
// Made before the program's own statics and destroyed after them: what those do is scheduled and reported too.
struct Report {
  Report() {
    const char *schedule = getenv("EMU_SCHEDULE"), *order = getenv("EMU_ORDER");
    if (order) emu_set_order(strtoull(order, nullptr, 10));
    if (!schedule || emu_set_schedule(schedule)) return;
    fprintf(stderr, "EMU_SCHEDULE: expected eager, late or a number, found %s\n", schedule);
    exit(2);
  }
  ~Report() {
    std::vector<char> text(emu_findings(nullptr, 0) + 1);
    emu_findings(text.data(), text.size());
    fputs(text.data(), stderr);
  }
} report __attribute__((init_priority(200)));
}  // namespace
