// One load under way: how far it is, and whether it is still wanted.
#ifndef ORCD_WORKER_LOAD_TASK_H_
#define ORCD_WORKER_LOAD_TASK_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/load_observer.h"

namespace orcd {

// Shared by the thread that loads and those that watch it. Any thread may call.
class LoadTask : public LoadObserver {
 public:
  void OnProgress(LoadStage stage, uint64_t done, uint64_t total) override;
  bool cancelled() const override { return cancelled_.load(std::memory_order_relaxed); }

  // The load stops at its next report and is rolled back.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  v1::LoadProgress Progress() const;
  // To the end of the stage under way; nothing while there is nothing to estimate from.
  std::optional<absl::Duration> Eta() const;

 private:
  std::optional<absl::Duration> EtaLocked(absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Time start_ = absl::Now();
  std::atomic<bool> cancelled_ = false;

  mutable absl::Mutex mutex_;
  LoadStage stage_ ABSL_GUARDED_BY(mutex_) = LoadStage::kOpen;
  absl::Time stage_start_ ABSL_GUARDED_BY(mutex_) = start_;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_LOAD_TASK_H_
