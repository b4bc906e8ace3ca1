// Who wants to know how a request fares.
#ifndef ORCD_WORKER_REQUEST_OBSERVER_H_
#define ORCD_WORKER_REQUEST_OBSERVER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine/request.h"

namespace orcd {

// Told of one request by its stream, never on the engine's thread. One thread at a time.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;

  // More tokens came, at `time` of SteadyNow.
  virtual void OnTokens(int tokens, absl::Time time) = 0;
  // The engine did not take the request: OnEnded follows.
  virtual void OnRefused() = 0;
  // The call is over, and ended with `status`.
  virtual void OnEnded(const FinishedEvent& event, const absl::Status& status) = 0;

  // In hex, for the log.
  virtual std::string trace_id() const = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_REQUEST_OBSERVER_H_
