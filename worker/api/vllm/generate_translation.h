// Reads this protocol's Generate request for the engine.
#ifndef ORCD_WORKER_API_VLLM_GENERATE_TRANSLATION_H_
#define ORCD_WORKER_API_VLLM_GENERATE_TRANSLATION_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/api/orcd/request_builder.h"
#include "worker/api/vllm/wire.h"

namespace orcd {

// Takes over the request; its prompt is moved. Fails with kInvalidArgument, naming the field, for
// anything that the engine does not serve. RequestBuilder and the engine make all other checks.
absl::StatusOr<RequestBuilder> TranslateVllmRequest(vllm_wire::GenerateRequest request);

// Returns the error of a request as this protocol's clients must see it: gateways report
// UNIMPLEMENTED as a failure of their own, so a field that is not served is a wrong field.
absl::Status InVllmWords(const absl::Status& status);

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_GENERATE_TRANSLATION_H_
