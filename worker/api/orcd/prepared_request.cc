#include "worker/api/orcd/prepared_request.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/api/orcd/request_translation.h"

namespace orcd {

absl::StatusOr<PreparedRequest> PrepareRequest(const v1::GenerateRequest& proto, ModelHost& host,
                                               absl::Time arrival, absl::Time deadline) {
  ORCD_ASSIGN_OR_RETURN(EngineLease admitted, host.Admit(proto.model_id()));
  PreparedRequest prepared;
  prepared.lease = std::make_shared<EngineLease>(std::move(admitted));
  Engine& engine = prepared.lease->engine();
  ORCD_ASSIGN_OR_RETURN(prepared.request,
                        TranslateParameters(proto, engine.model(), arrival, deadline));
  // Tokens need no encoding, so Submit decides at once.
  if (proto.prompt_case() != v1::GenerateRequest::kTokens) {
    ORCD_RETURN_IF_ERROR(
        engine.CheckAhead(prepared.request.samples, LeastPromptTokens(proto, engine.model())));
  }
  if (deadline <= SteadyNow()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the request's deadline passed before it could be read",
                     {.reason = "DEADLINE_EXCEEDED"});
  }
  ORCD_ASSIGN_OR_RETURN(prepared.request.prompt, TranslatePrompt(proto, engine.model()));
  return prepared;
}

}  // namespace orcd
