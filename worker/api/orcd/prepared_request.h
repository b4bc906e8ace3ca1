// Converts a request on the wire to one that the engine accepts.
#ifndef ORCD_WORKER_API_ORCD_PREPARED_REQUEST_H_
#define ORCD_WORKER_API_ORCD_PREPARED_REQUEST_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/request.h"
#include "worker/host/model_host.h"

namespace orcd {

struct PreparedRequest {
  // Counts as a request until it is released, which must be when the request has ended.
  std::shared_ptr<EngineLease> lease;
  // Complete except for the sink.
  GenerationRequest request;
};

// Fails with the errors of ModelHost::Admit, Engine::CheckAhead and TranslateRequest, and with
// kDeadlineExceeded. A request without room in the queue is refused before its prompt is encoded.
absl::StatusOr<PreparedRequest> PrepareRequest(const v1::GenerateRequest& proto, ModelHost& host,
                                               absl::Time arrival, absl::Time deadline);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_PREPARED_REQUEST_H_
