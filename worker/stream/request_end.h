// Reports the end of a request to its client, to the log and to its observer.
#ifndef ORCD_WORKER_STREAM_REQUEST_END_H_
#define ORCD_WORKER_STREAM_REQUEST_END_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/engine/request.h"
#include "worker/base/logging.h"
#include "worker/observe/request_observer.h"

namespace orcd {

// Returns the status of a call whose request ended with `event`. `seed` is the request's.
absl::Status CallStatus(const FinishedEvent& event, const std::string& id, uint64_t seed);

// Logs the end of a request and notifies its observer (null: none). `status` is the one that the
// client gets.
void ReportRequestEnd(const Logger& log, const std::string& id, const FinishedEvent& event,
                      const absl::Status& status, RequestObserver* observer);

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_REQUEST_END_H_
