// A call that generates, whatever protocol it came by: from orcd.v1's request to a stream that the
// engine writes to.
#ifndef ORCD_WORKER_GENERATE_CALL_H_
#define ORCD_WORKER_GENERATE_CALL_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/request.h"
#include "worker/logging.h"
#include "worker/model_host.h"
#include "worker/response_encoder.h"
#include "worker/telemetry.h"
#include "worker/token_stream.h"

namespace orcd {

struct GenerateCallOptions {
  TokenStreamLimits limits = {};
  // Null: nothing is measured.
  Telemetry* telemetry = nullptr;
  // Makes the encoder of the request, which lacks its sink only.
  std::function<std::unique_ptr<ResponseEncoder>(const GenerationRequest&, const Engine&)> encoder;
};

// The call's reactor. What the engine refuses ends it. The errors are those of PrepareRequest.
// `host`, `log` and the telemetry must outlive the call.
absl::StatusOr<std::shared_ptr<TokenStream>> StartGenerateCall(grpc::CallbackServerContext* context,
                                                               const v1::GenerateRequest& proto,
                                                               absl::Time arrival, ModelHost& host,
                                                               const Logger& log,
                                                               const GenerateCallOptions& options);

// Of a call that has no stream. `telemetry` may be null.
void CountRefusal(Telemetry* telemetry, const absl::Status& status);

}  // namespace orcd

#endif  // ORCD_WORKER_GENERATE_CALL_H_
