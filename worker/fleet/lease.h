// The rules by which a worker keeps its lease with an orchestrator, without calls or threads.
#ifndef ORCD_WORKER_FLEET_LEASE_H_
#define ORCD_WORKER_FLEET_LEASE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "absl/time/time.h"

namespace orcd {

// Decides which call to make next, when, and to which orchestrator. The caller asks NextCall(),
// makes that call, and reports its outcome with one of the events. Times are of a steady clock, so
// a step of the wall clock has no effect. One thread at a time may call.
class Lease {
 public:
  using Time = std::chrono::steady_clock::time_point;

  enum class Action { kRegister, kHeartbeat };

  struct Call {
    Action action = Action::kRegister;
    // The earliest time of the call.
    Time at;
    // Index of the orchestrator to call.
    size_t orchestrator = 0;
  };

  struct Backoff {
    absl::Duration initial = absl::Milliseconds(200);
    absl::Duration max = absl::Seconds(10);
  };

  // Registration is due at once, with the first of `orchestrators` (at least 1) addresses. `seed`
  // spreads the retries of workers that lost their orchestrator at the same moment.
  Lease(size_t orchestrators, const Backoff& backoff, uint64_t seed);

  // Returns the next call. Drops the lease if it has expired by `now`.
  Call NextCall(Time now);

  // Id of the lease; empty if there is none.
  const std::string& id() const { return id_; }
  // Time left of the lease; zero if there is none.
  absl::Duration Remaining(Time now) const;
  // Takes the number of the next heartbeat of this lease, counted from 1. Each heartbeat call takes
  // one.
  uint64_t TakeSequence() { return ++sequence_; }

  // Events. `sent` is the time at which the answered call began: the orchestrator's clock for the
  // lease started no earlier.
  //
  // Register was answered with a lease.
  void OnGranted(std::string id, absl::Duration ttl, Time sent);
  // Heartbeat was answered. A `ttl` that is not positive leaves the lease's length unchanged.
  void OnRenewed(absl::Duration ttl, Time sent);
  // The orchestrator does not know the lease: registration is due at once.
  void OnUnknown(Time now);
  // The orchestrator asks for a new registration, which is due at once, but no sooner after the
  // last registration than a first retry would be, so that an orchestrator that always asks is not
  // flooded.
  void OnReregister(Time now);
  // The call failed otherwise. The next orchestrator is due after a wait that doubles with each
  // consecutive failure and is drawn from its upper half. While there is a lease, the wait is at
  // most half of the time left, or the initial wait if that is longer.
  void OnFailed(Time now);
  // The worker's state changed: a heartbeat is due at once, but at least a minimal gap after the
  // last call. The gap merges changes that come together, even if an orchestrator causes some with
  // each reply. Does not shorten the wait after a failure, nor the wait for a registration, which
  // reports the state anyway.
  void OnStateChanged(Time now);

 private:
  const size_t orchestrators_;
  const Backoff backoff_;
  std::minstd_rand random_;

  size_t current_ = 0;
  // Consecutive failures.
  int failures_ = 0;
  Time due_;

  std::string id_;
  absl::Duration ttl_;
  uint64_t sequence_ = 0;
  Time granted_;
  // Send time of the last call that was answered.
  Time renewed_;
  Time expires_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_LEASE_H_
