#include "worker/stream/work_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// Approximate size that a thread tokenises in 10 ms.
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
  Queue& queue = QueueFor(bytes);
  if (queue.posted > 0 && (queue.posted >= limits_.max_waiting ||
                           queue.posted_bytes + bytes > limits_.max_waiting_bytes)) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("the queue is full: ", queue.posted, " requests with ", queue.posted_bytes,
                     " bytes wait to be read, this one has ", bytes, " bytes, and at most ",
                     limits_.max_waiting, " with ", limits_.max_waiting_bytes,
                     " bytes may wait; try again later or on another worker"),
        {.reason = "QUEUE_FULL", .subject = "queue:unread", .retry_after = kRetryAfter});
  }
  ++queue.posted;
  queue.posted_bytes += bytes;
  queue.items.push_back({.bytes = bytes, .is_counted = true, .work = std::move(work)});
  changed_.notify_one();
  return absl::OkStatus();
}

void WorkPool::PostAlways(size_t bytes, std::function<void()> work) {
  std::lock_guard lock(mutex_);
  QueueFor(bytes).items.push_back({.bytes = bytes, .is_counted = false, .work = std::move(work)});
  changed_.notify_one();
}

int WorkPool::ThreadsFor(int processors) { return std::clamp(processors / 2, 1, 16); }

WorkPool::Queue& WorkPool::QueueFor(size_t bytes) { return bytes <= kSmallBytes ? small_ : large_; }

WorkPool::Item WorkPool::Pop() {
  const bool take_large =
      small_.items.empty() || (!large_.items.empty() && passed_ >= kPassedAtMost);
  if (take_large || large_.items.empty()) {
    passed_ = 0;
  } else {
    ++passed_;
  }
  Queue& from = take_large ? large_ : small_;
  Item item = std::move(from.items.front());
  from.items.pop_front();
  if (item.is_counted) {
    --from.posted;
    from.posted_bytes -= item.bytes;
  }
  return item;
}

void WorkPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this] { return stopping_ || !small_.items.empty() || !large_.items.empty(); });
    if (small_.items.empty() && large_.items.empty()) return;
    Item item = Pop();
    lock.unlock();
    item.work();
    // Destroying its captures may take other locks.
    item.work = nullptr;
    lock.lock();
  }
}

}  // namespace orcd
