#include "worker/prepared_request.h"

#include <utility>

#include "runtime/error.h"
#include "worker/request_translation.h"

namespace orcd {

absl::StatusOr<PreparedRequest> PrepareRequest(const v1::GenerateRequest& proto, ModelHost& host,
                                               absl::Time arrival, absl::Time deadline) {
  ORCD_ASSIGN_OR_RETURN(EngineLease admitted, host.Admit(proto.model_id()));
  PreparedRequest prepared;
  prepared.lease = std::make_shared<EngineLease>(std::move(admitted));
  ORCD_ASSIGN_OR_RETURN(prepared.request, TranslateRequest(proto, prepared.lease->engine().model(),
                                                           arrival, deadline));
  return prepared;
}

}  // namespace orcd
