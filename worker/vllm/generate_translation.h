// From this protocol's Generate to orcd.v1's, and back to its words.
#ifndef ORCD_WORKER_VLLM_GENERATE_TRANSLATION_H_
#define ORCD_WORKER_VLLM_GENERATE_TRANSLATION_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"
#include "worker/vllm/wire.h"

namespace orcd {

// The same request to orcd.v1. kInvalidArgument naming the field for what orcd.v1 cannot say, which
// is not served; all other checks are left to TranslateRequest and the engine.
absl::StatusOr<v1::GenerateRequest> TranslateVllmRequest(const vllm_wire::GenerateRequest& request);

// An error about the request that TranslateVllmRequest gave, with the fields as its client knows
// them.
absl::Status InVllmWords(const absl::Status& status);

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_GENERATE_TRANSLATION_H_
