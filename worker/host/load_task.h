// One load under way: its progress, and its cancellation.
#ifndef ORCD_WORKER_HOST_LOAD_TASK_H_
#define ORCD_WORKER_HOST_LOAD_TASK_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/base/load_observer.h"
#include "runtime/base/steady_time.h"

namespace orcd {

// Shared by the thread that loads and the threads that watch it. Any thread may call.
class LoadTask : public LoadObserver {
 public:
  void OnProgress(LoadStage stage, uint64_t done, uint64_t total) override;
  bool cancelled() const override { return cancelled_.load(std::memory_order_relaxed); }

  // The load stops at its next report and is rolled back.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  v1::LoadProgress Progress() const;
  // Estimated time to the end of the current stage; nullopt while there is nothing to estimate
  // from.
  std::optional<absl::Duration> Eta() const;

 private:
  // The caller holds mutex_.
  std::optional<absl::Duration> EtaLocked(absl::Time now) const;

  const absl::Time start_ = SteadyNow();
  std::atomic<bool> cancelled_ = false;

  // Guards the members below.
  mutable std::mutex mutex_;
  LoadStage stage_ = LoadStage::kOpen;
  absl::Time stage_start_ = start_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_LOAD_TASK_H_
