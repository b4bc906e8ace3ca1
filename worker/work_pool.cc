#include "worker/work_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/error.h"

namespace orcd {
namespace {

// About what a thread tokenises in 10 ms.
constexpr size_t kSmallBytes = 64 << 10;
constexpr int kPassedAtMost = 7;
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

}  // namespace

WorkPool::WorkPool(const Limits& limits) : limits_(limits) {
  threads_.reserve(limits.threads);
  for (int i = 0; i < limits.threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkPool::~WorkPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status WorkPool::Post(size_t bytes, std::function<void()> work) {
  std::lock_guard lock(mutex_);
  const size_t waiting = small_.size() + large_.size();
  if (waiting > 0 && (waiting >= static_cast<size_t>(limits_.max_waiting) ||
                      waiting_bytes_ + bytes > limits_.max_waiting_bytes)) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("the queue is full: ", waiting, " requests with ", waiting_bytes_,
                     " bytes wait to be read, this one has ", bytes, " bytes, and at most ",
                     limits_.max_waiting, " with ", limits_.max_waiting_bytes,
                     " bytes may wait; try again later or on another worker"),
        {.reason = "QUEUE_FULL", .subject = "queue:unread", .retry_after = kRetryAfter});
  }
  Push(bytes, std::move(work));
  return absl::OkStatus();
}

void WorkPool::PostAlways(size_t bytes, std::function<void()> work) {
  std::lock_guard lock(mutex_);
  Push(bytes, std::move(work));
}

int WorkPool::ThreadsFor(int processors) { return std::clamp(processors / 2, 1, 16); }

void WorkPool::Push(size_t bytes, std::function<void()> work) {
  waiting_bytes_ += bytes;
  (bytes <= kSmallBytes ? small_ : large_).push_back({bytes, std::move(work)});
  changed_.notify_one();
}

WorkPool::Item WorkPool::Pop() {
  const bool take_large = small_.empty() || (!large_.empty() && passed_ >= kPassedAtMost);
  if (take_large || large_.empty()) {
    passed_ = 0;
  } else {
    ++passed_;
  }
  std::deque<Item>& from = take_large ? large_ : small_;
  Item item = std::move(from.front());
  from.pop_front();
  waiting_bytes_ -= item.bytes;
  return item;
}

void WorkPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !small_.empty() || !large_.empty(); });
    if (small_.empty() && large_.empty()) return;
    Item item = Pop();
    lock.unlock();
    item.work();
    // Destroying its captures may take other locks.
    item.work = nullptr;
    lock.lock();
  }
}

}  // namespace orcd
