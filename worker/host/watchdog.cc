#include "worker/host/watchdog.h"

#include <algorithm>
#include <utility>

#include "runtime/base/steady_time.h"

namespace orcd {
namespace {

constexpr int kLooksPerLimit = 8;
// If the watchdog's wait lasts this many times longer than its pause, the process itself was
// stopped.
constexpr int kStopped = 3;
constexpr absl::Duration kLongestPause = absl::Seconds(1);

}  // namespace

Watchdog::Watchdog(absl::Duration limit, std::function<absl::Duration()> stalled_for,
                   std::function<void(absl::Duration stalled)> on_stall)
    : limit_(limit), stalled_for_(std::move(stalled_for)), on_stall_(std::move(on_stall)) {
  if (limit_ < absl::InfiniteDuration()) thread_ = std::thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Run() {
  const absl::Duration pause = std::min(limit_ / kLooksPerLimit, kLongestPause);
  absl::Time looked = SteadyNow();
  bool may_wait = true;
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, absl::ToChronoNanoseconds(pause), [this] { return stopping_; })) {
    const absl::Time now = SteadyNow();
    // A process that was stopped as a whole gets one more interval to make progress before it
    // counts as hanging.
    const bool was_stopped = now - looked > kStopped * pause;
    looked = now;
    may_wait = !(was_stopped && may_wait);
    if (!may_wait) continue;
    lock.unlock();
    const absl::Duration stalled = stalled_for_();
    if (stalled > limit_) return on_stall_(stalled);
    lock.lock();
  }
}

}  // namespace orcd
