// Translates this protocol's Generate request to orcd.v1's, and errors back to this protocol's
// terms.
#ifndef ORCD_WORKER_API_VLLM_GENERATE_TRANSLATION_H_
#define ORCD_WORKER_API_VLLM_GENERATE_TRANSLATION_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"
#include "worker/api/vllm/wire.h"

namespace orcd {

// Returns the same request for orcd.v1. Fails with kInvalidArgument, naming the field, for anything
// that orcd.v1 cannot express and therefore does not serve. TranslateRequest and the engine make
// all other checks.
absl::StatusOr<v1::GenerateRequest> TranslateVllmRequest(vllm_wire::GenerateRequest request);

// Returns an error about a request made by TranslateVllmRequest with the client's names of the
// fields.
absl::Status InVllmWords(const absl::Status& status);

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_GENERATE_TRANSLATION_H_
