// What smg's /workers answers.
#ifndef ORCD_WORKER_SMG_WORKERS_H_
#define ORCD_WORKER_SMG_WORKERS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd {

// An entry of smg's list of workers, as much of it as counts here. A field that is missing or not
// as it should be is empty.
struct SmgWorker {
  // A UUID, made anew whenever a worker is entered.
  std::string id;
  // Such as `grpc://10.0.0.1:50051`.
  std::string url;
  // `ready`, `not_ready`, `failed`, `draining`; `pending` before smg has reached the worker.
  std::string status;
  // Of what smg is doing about it: such as `processing` or `failed`; empty: nothing.
  std::string job_status;
};

// Of GET /workers/{id}. kUnavailable where it is no JSON of an object.
absl::StatusOr<SmgWorker> ParseSmgWorker(const std::string& json);

// Of GET /workers. kUnavailable where it is no JSON of a list of workers.
absl::StatusOr<std::vector<SmgWorker>> ParseSmgWorkers(const std::string& json);

// The first UUID of `text`, which POST /workers answers; empty where there is none.
std::string FindSmgWorkerId(std::string_view text);

}  // namespace orcd

#endif  // ORCD_WORKER_SMG_WORKERS_H_
