// The limit on the memory that connections make the process hold.
#ifndef ORCD_WORKER_SECURITY_GUARD_TRANSPORT_BUDGET_H_
#define ORCD_WORKER_SECURITY_GUARD_TRANSPORT_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace orcd::guard {

// The bytes charged for all connections of a listener. Any thread may call.
class TransportBudget {
 public:
  explicit TransportBudget(int64_t limit) : limit_(limit) {}

  // Charges `bytes`. False, with nothing charged, if they would exceed the limit.
  bool TryCharge(int64_t bytes) {
    if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit_) return true;
    Release(bytes);
    return false;
  }
  void Release(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t limit() const { return limit_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_ = 0;
};

// The share of one connection in a TransportBudget, which must outlive it. For one thread.
class ConnectionBudget {
 public:
  enum class Result { kCharged, kConnectionFull, kTotalFull };

  ConnectionBudget(int64_t limit, TransportBudget& total) : limit_(limit), total_(total) {}
  ~ConnectionBudget() { total_.Release(used_); }
  ConnectionBudget(const ConnectionBudget&) = delete;
  ConnectionBudget& operator=(const ConnectionBudget&) = delete;

  Result Charge(int64_t bytes) {
    if (used_ + bytes > limit_) return Result::kConnectionFull;
    if (!total_.TryCharge(bytes)) return Result::kTotalFull;
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return Result::kCharged;
  }
  void Release(int64_t bytes) {
    used_ -= bytes;
    total_.Release(bytes);
  }
  // Leaves the charge in the total. The caller releases it later.
  int64_t Detach() { return std::exchange(used_, 0); }

  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }

 private:
  const int64_t limit_;
  TransportBudget& total_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_TRANSPORT_BUDGET_H_
