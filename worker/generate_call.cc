#include "worker/generate_call.h"

#include <string>
#include <utility>

#include "runtime/error.h"
#include "worker/call_deadline.h"

namespace orcd {

absl::StatusOr<PreparedCall> PrepareCall(const grpc::CallbackServerContext& context,
                                         const v1::GenerateRequest& proto, absl::Time arrival,
                                         absl::Time deadline, ModelHost& host,
                                         Telemetry* telemetry) {
  PreparedCall call;
  ORCD_ASSIGN_OR_RETURN(call.prepared, PrepareRequest(proto, host, arrival, deadline));
  const std::string& id = call.prepared.request.id;
  if (telemetry != nullptr) {
    call.observer =
        telemetry->ObserveRequest(telemetry->ContextOf(context), id, proto.model_id(), arrival);
  }
  call.cancel = [telemetry, lease = call.prepared.lease, id] {
    lease->engine().Cancel(id, FinishReason::kCancelled, Telemetry::TimeRelease(telemetry));
  };
  return call;
}

absl::StatusOr<std::shared_ptr<TokenStream>> StartGenerateCall(grpc::CallbackServerContext* context,
                                                               const v1::GenerateRequest& proto,
                                                               absl::Time arrival, ModelHost& host,
                                                               const Logger& log,
                                                               const GenerateCallOptions& options) {
  ORCD_ASSIGN_OR_RETURN(
      PreparedCall call,
      PrepareCall(*context, proto, arrival, CallDeadline(*context), host, options.telemetry));
  const GenerationRequest& request = call.prepared.request;
  auto stream =
      TokenStream::Create(context,
                          {.id = request.id,
                           .seed = request.sampling.seed,
                           .encoder = options.encoder(request, call.prepared.lease->engine()),
                           .observer = std::move(call.observer),
                           .writes = options.writes,
                           .cancel = std::move(call.cancel)},
                          options.limits, log);
  SubmitCall(std::move(call.prepared), stream);
  return stream;
}

void CountRefusal(Telemetry* telemetry, const absl::Status& status) {
  if (telemetry == nullptr) return;
  telemetry->metrics().OnRequestRefused(status.code(), GetErrorDetails(status).reason);
}

}  // namespace orcd
