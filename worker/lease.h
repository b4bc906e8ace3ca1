// The rules by which a worker keeps its lease with an orchestrator, apart from calls and threads.
#ifndef ORCD_WORKER_LEASE_H_
#define ORCD_WORKER_LEASE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "absl/time/time.h"

namespace orcd {

// Decides what to tell the orchestrators next, when, and which of them. Whoever makes the calls
// asks NextCall(), makes that call, and reports how it ended by one of the events. Times are of a
// steady clock, so a step of the wall clock moves nothing. For one thread at a time.
class Lease {
 public:
  using Time = std::chrono::steady_clock::time_point;

  enum class Action { kRegister, kHeartbeat };

  struct Call {
    Action action = Action::kRegister;
    // Not before this.
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

  // A lease that has run out by `now` is forgotten.
  Call NextCall(Time now);

  // Of the lease; empty where there is none.
  const std::string& id() const { return id_; }
  // What is left of the lease, zero where there is none.
  absl::Duration Remaining(Time now) const;
  // The number of the next heartbeat of this lease, from 1. Each call of a heartbeat takes one.
  uint64_t TakeSequence() { return ++sequence_; }

  // Events. `sent` is when the call that was answered began: the orchestrator's clock for the lease
  // started no earlier.
  //
  // Register was answered with a lease.
  void OnGranted(std::string id, absl::Duration ttl, Time sent);
  // Heartbeat was answered; a `ttl` that is not positive leaves the length as it was.
  void OnRenewed(absl::Duration ttl, Time sent);
  // The orchestrator does not know the lease: registration is due at once.
  void OnUnknown(Time now);
  // The orchestrator asks for a new registration. Due at once, but not sooner after the last than a
  // first retry would be, so that an orchestrator that always asks is not flooded.
  void OnReregister(Time now);
  // The call failed otherwise: the next orchestrator is due after a wait that doubles with each
  // failure in a row and is drawn from its upper half. While there is a lease the wait is no longer
  // than half of what is left of it, where that is longer than the first wait.
  void OnFailed(Time now);
  // The worker's state changed: a heartbeat is due at once, but not sooner after the last call than
  // that news come together, where an orchestrator makes some with each reply. Does not shorten the
  // wait after a failure, nor that for a registration, which tells the state anyway.
  void OnStateChanged(Time now);

 private:
  const size_t orchestrators_;
  const Backoff backoff_;
  std::minstd_rand random_;

  size_t current_ = 0;
  // Failures in a row.
  int failures_ = 0;
  Time due_;

  std::string id_;
  absl::Duration ttl_;
  uint64_t sequence_ = 0;
  Time granted_;
  // When the last call that was answered was sent.
  Time renewed_;
  Time expires_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_LEASE_H_
