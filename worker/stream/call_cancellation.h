// Lets one thread cancel a call that another thread makes.
#ifndef ORCD_WORKER_STREAM_CALL_CANCELLATION_H_
#define ORCD_WORKER_STREAM_CALL_CANCELLATION_H_

#include <functional>
#include <mutex>
#include <utility>

namespace orcd {

// Cancels one call, or several consecutive calls. Any thread may call.
class CallCancellation {
 public:
  // Ends the call under way and every later one.
  void Cancel() {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (end_) end_();
  }

  bool cancelled() const {
    std::lock_guard lock(mutex_);
    return cancelled_;
  }

  // While a Scope lives, Cancel calls `end`, which must not block. If Cancel was called earlier,
  // the constructor calls `end` at once.
  class Scope {
   public:
    Scope(CallCancellation& cancellation, std::function<void()> end) : cancellation_(cancellation) {
      std::lock_guard lock(cancellation_.mutex_);
      if (cancellation_.cancelled_) end();
      cancellation_.end_ = std::move(end);
    }
    ~Scope() {
      std::lock_guard lock(cancellation_.mutex_);
      cancellation_.end_ = nullptr;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallCancellation& cancellation_;
  };

 private:
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  bool cancelled_ = false;
  std::function<void()> end_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_CALL_CANCELLATION_H_
