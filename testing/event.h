// A one-shot event that threads can wait for. Built on std::mutex, unlike absl::Notification, so
// that ThreadSanitizer sees the ordering it creates.
#ifndef ORCD_TESTING_EVENT_H_
#define ORCD_TESTING_EVENT_H_

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace orcd {

class Event {
 public:
  void Notify() {
    std::lock_guard lock(mutex_);
    notified_ = true;
    changed_.notify_all();
  }
  bool notified() const {
    std::lock_guard lock(mutex_);
    return notified_;
  }
  // Returns false if the event did not happen within `timeout`.
  bool WaitFor(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                             [this] { return notified_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
};

}  // namespace orcd

#endif  // ORCD_TESTING_EVENT_H_
