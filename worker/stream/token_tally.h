// Counts tokens on the engine thread and reports them to an observer on another thread.
#ifndef ORCD_WORKER_STREAM_TOKEN_TALLY_H_
#define ORCD_WORKER_STREAM_TOKEN_TALLY_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/steady_time.h"
#include "worker/observe/request_observer.h"

namespace orcd {

// Records on the engine thread when tokens came, which takes no more than reading a clock and a
// short lock, and reports them to the observer on another thread. Any thread may call.
class TokenTally {
 public:
  // Null: nothing is counted. Must be called before anything else, and at most once.
  void set_observer(std::shared_ptr<RequestObserver> observer) { observer_ = std::move(observer); }
  RequestObserver* observer() const { return observer_.get(); }

  // Returns the number of Adds that have not been reported yet.
  size_t Add(int tokens) {
    if (observer_ == nullptr || tokens == 0) return 0;
    const absl::Time now = SteadyNow();
    std::lock_guard lock(mutex_);
    counts_.emplace_back(tokens, now);
    return counts_.size();
  }

  // Reports them to the observer, in their order.
  void Report() {
    if (observer_ == nullptr) return;
    std::lock_guard reporting(report_mutex_);
    std::vector<std::pair<int, absl::Time>> counts;
    {
      std::lock_guard lock(mutex_);
      counts.swap(counts_);
    }
    for (const auto& [tokens, time] : counts) observer_->OnTokens(tokens, time);
  }

 private:
  std::shared_ptr<RequestObserver> observer_;
  // Held by the thread that reports; locked before mutex_.
  std::mutex report_mutex_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::pair<int, absl::Time>> counts_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_TOKEN_TALLY_H_
