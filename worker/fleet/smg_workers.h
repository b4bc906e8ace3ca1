// Parsers of the answers of smg's /workers.
#ifndef ORCD_WORKER_FLEET_SMG_WORKERS_H_
#define ORCD_WORKER_FLEET_SMG_WORKERS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd {

// An entry of smg's list of workers, with the fields used here. A missing or malformed field is
// empty.
struct SmgWorker {
  // A UUID, generated anew whenever a worker is entered.
  std::string id;
  // Such as `grpc://10.0.0.1:50051`.
  std::string url;
  // `ready`, `not_ready`, `failed`, `draining`; `pending` before smg has reached the worker.
  std::string status;
  // State of smg's job for the worker, such as `processing` or `failed`; empty if there is no job.
  std::string job_status;
};

// Parses the answer of GET /workers/{id}. Fails with kUnavailable if it is not a JSON object.
absl::StatusOr<SmgWorker> ParseSmgWorker(const std::string& json);

// Parses the answer of GET /workers. Fails with kUnavailable if it is not a JSON list of workers.
absl::StatusOr<std::vector<SmgWorker>> ParseSmgWorkers(const std::string& json);

// Returns the first UUID in `text`, the answer of POST /workers; empty if there is none.
std::string FindSmgWorkerId(std::string_view text);

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_SMG_WORKERS_H_
