#include "worker/generate_call.h"

#include <utility>

#include "runtime/error.h"
#include "worker/call_deadline.h"
#include "worker/prepared_request.h"

namespace orcd {

absl::StatusOr<std::shared_ptr<TokenStream>> StartGenerateCall(grpc::CallbackServerContext* context,
                                                               const v1::GenerateRequest& proto,
                                                               absl::Time arrival, ModelHost& host,
                                                               const Logger& log,
                                                               const GenerateCallOptions& options) {
  ORCD_ASSIGN_OR_RETURN(PreparedRequest prepared,
                        PrepareRequest(proto, host, arrival, CallDeadline(*context)));
  std::shared_ptr<EngineLease> lease = std::move(prepared.lease);
  GenerationRequest& request = prepared.request;

  Telemetry* const telemetry = options.telemetry;
  std::shared_ptr<RequestObserver> observer;
  if (telemetry != nullptr) {
    observer = telemetry->ObserveRequest(telemetry->ContextOf(*context), request.id,
                                         proto.model_id(), arrival);
  }
  auto stream =
      TokenStream::Create(context,
                          {.id = request.id,
                           .seed = request.sampling.seed,
                           .encoder = options.encoder(request, lease->engine()),
                           .observer = std::move(observer),
                           .cancel =
                               [telemetry, lease, id = request.id] {
                                 lease->engine().Cancel(id, FinishReason::kCancelled,
                                                        Telemetry::TimeRelease(telemetry));
                               }},
                          options.limits, log);
  request.sink = stream;
  // The request's own lease is the stream's: it goes when the request ends, which may be before
  // Submit has returned.
  const EngineLease borrowed = lease->Borrow();
  lease = nullptr;
  if (absl::Status status = borrowed.engine().Submit(std::move(request)); !status.ok()) {
    stream->Refuse(status);
  }
  return stream;
}

void CountRefusal(Telemetry* telemetry, const absl::Status& status) {
  if (telemetry == nullptr) return;
  telemetry->metrics().OnRequestRefused(status.code(), GetErrorDetails(status).reason);
}

}  // namespace orcd
