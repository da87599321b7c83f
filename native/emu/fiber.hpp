// Fibers: stacks that one host thread switches between by itself. A device thread is a fiber.
#pragma once

#include <cstddef>

namespace emu {

// A suspended stack. `resume` and `suspend` come in pairs: the scheduler resumes a fiber, the fiber suspends itself.
class Fiber {
 public:
  // Makes the fiber start at entry() on its next resume. entry must not return: it ends with a last suspend(true).
  void start(void (*entry)());
  // From the scheduler: runs the fiber until it suspends.
  void resume();
  // From the fiber: back to the scheduler. last: its stack is done with.
  void suspend(bool last = false);
  // To call first in entry().
  void entered();

  bool on_stack(const void* p) const { return p >= stack_ && p < static_cast<const char*>(stack_) + kStackBytes; }

  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  static constexpr size_t kStackBytes = 128 * 1024;  // the lowest page is a guard

 private:
  void* stack_ = nullptr;
  void* own_ = nullptr;        // saved stack pointer of the fiber
  void* scheduler_ = nullptr;  // saved stack pointer of who resumed it
  void* fake_stack_ = nullptr; // for AddressSanitizer
  void* scheduler_fake_ = nullptr;
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_bytes_ = 0;
};

}  // namespace emu
