// Threads that a context owns. The caller takes part in the work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dlab {

class Pool {
 public:
  // threads >= 1, the caller included.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(item, thread) for every item in 0 .. items-1, in any order, and returns when all are done. work must not throw.
  void run(int64_t items, const std::function<void(int64_t item, int thread)>& work);

 private:
  void serve(int thread);
  void take_items(int thread);
  void stop() noexcept;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, finish_;
  const std::function<void(int64_t, int)>* work_ = nullptr;
  int64_t items_ = 0;
  std::atomic<int64_t> next_{0};
  uint64_t generation_ = 0;
  int running_ = 0;
  bool stopping_ = false;
};

}  // namespace dlab
