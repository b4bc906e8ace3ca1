// Detects that the engine hangs.
#ifndef ORCD_WORKER_HOST_WATCHDOG_H_
#define ORCD_WORKER_HOST_WATCHDOG_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace orcd {

// Owns a thread that asks `stalled_for` several times within `limit` for how long there has been
// work and no progress. If the answer exceeds `limit`, it calls `on_stall` with the answer, once.
// An infinite limit disables the watchdog.
class Watchdog {
 public:
  Watchdog(absl::Duration limit, std::function<absl::Duration()> stalled_for,
           std::function<void(absl::Duration stalled)> on_stall);
  // Waits for a running `on_stall`, but not for the engine.
  ~Watchdog();

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Run();

  const absl::Duration limit_;
  const std::function<absl::Duration()> stalled_for_;
  const std::function<void(absl::Duration)> on_stall_;

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_WATCHDOG_H_
