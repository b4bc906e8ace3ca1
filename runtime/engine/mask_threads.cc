#include "runtime/engine/mask_threads.h"

#include <pthread.h>

#include <algorithm>

namespace orcd {
namespace {

// Fewer calls are made on the caller's thread.
constexpr int kFewestToShare = 3;
constexpr int kMostThreads = 3;

}  // namespace

MaskThreads::MaskThreads(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Help(); });
  }
}

MaskThreads::~MaskThreads() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int MaskThreads::DefaultThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) - 1, 0, kMostThreads);
}

void MaskThreads::Run(int count, absl::FunctionRef<void(int)> work) {
  if (count < kFewestToShare || threads_.empty()) {
    for (int i = 0; i < count; ++i) work(i);
    return;
  }
  Job job{.work = work, .count = count};
  std::unique_lock lock(mutex_);
  job_ = &job;
  begun_.notify_all();
  Work(job, lock);
  // No other thread begins with the job, and those that did have the last calls.
  job_ = nullptr;
  left_.wait(lock, [this] { return working_ == 0; });
}

void MaskThreads::Help() {
  pthread_setname_np(pthread_self(), "orcd-masks");
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return ending_ || (job_ != nullptr && job_->next < job_->count); });
    if (ending_) return;
    ++working_;
    Work(*job_, lock);
    --working_;
    left_.notify_one();
  }
}

void MaskThreads::Work(Job& job, std::unique_lock<std::mutex>& lock) {
  while (job.next < job.count) {
    const int index = job.next++;
    lock.unlock();
    job.work(index);
    lock.lock();
  }
}

}  // namespace orcd
