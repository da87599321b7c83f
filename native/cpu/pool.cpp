#include "pool.hpp"

namespace dlab {

Pool::Pool(int threads) {
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { serve(t); });
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() noexcept {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void Pool::serve(int thread) {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    lock.unlock();
    take_items(thread);
    lock.lock();
    if (--running_ == 0) finish_.notify_one();
  }
}

void Pool::take_items(int thread) {
  for (int64_t item = next_.fetch_add(1); item < items_; item = next_.fetch_add(1)) (*work_)(item, thread);
}

void Pool::run(int64_t items, const std::function<void(int64_t, int)>& work) {
  if (workers_.empty() || items <= 1) {
    for (int64_t item = 0; item < items; ++item) work(item, 0);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    items_ = items;
    next_ = 0;
    running_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  start_.notify_all();
  take_items(0);
  std::unique_lock<std::mutex> lock(mutex_);
  finish_.wait(lock, [&] { return running_ == 0; });
}

}  // namespace dlab
