// The interface of an observer of one request's progress.
#ifndef ORCD_WORKER_OBSERVE_REQUEST_OBSERVER_H_
#define ORCD_WORKER_OBSERVE_REQUEST_OBSERVER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine/request.h"

namespace orcd {

// Receives the events of one request from its stream, never on the engine thread. One thread at a
// time calls it.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;

  // More tokens came, at `time` on the SteadyNow clock.
  virtual void OnTokens(int tokens, absl::Time time) = 0;
  // The engine refused the request: OnEnded follows.
  virtual void OnRefused() = 0;
  // The call is over, and ended with `status`.
  virtual void OnEnded(const FinishedEvent& event, const absl::Status& status) = 0;

  // In hex, for the log.
  virtual std::string trace_id() const = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_REQUEST_OBSERVER_H_
