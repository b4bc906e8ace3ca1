#include "worker/stream/write_queue.h"

#include <algorithm>
#include <utility>

namespace orcd {
namespace {

class Work final : public Writer {
 public:
  explicit Work(std::function<void()> work) : work_(std::move(work)) {}
  void Write() override { work_(); }

 private:
  const std::function<void()> work_;
};

}  // namespace

WriteQueue::WriteQueue(int threads) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WriteQueue::~WriteQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WriteQueue::Enqueue(std::shared_ptr<Writer> writer) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(writer));
    // A thread that is awake checks the queue again before it waits.
    wake = idle_ > 0;
  }
  if (wake) changed_.notify_one();
}

void WriteQueue::Do(std::function<void()> work) {
  Enqueue(std::make_shared<Work>(std::move(work)));
}

int WriteQueue::ThreadsFor(int processors) { return std::clamp(processors / 4, 1, 4); }

void WriteQueue::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (queue_.empty() && !stopping_) {
      ++idle_;
      changed_.wait(lock);
      --idle_;
    }
    if (queue_.empty()) return;
    std::shared_ptr<Writer> writer = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    writer->Write();
    // Drop it without the mutex: this may be its last reference.
    writer = nullptr;
    lock.lock();
  }
}

}  // namespace orcd
