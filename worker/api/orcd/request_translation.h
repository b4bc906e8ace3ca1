// Converts a request on the wire to the engine's request: checked, rendered and encoded.
#ifndef ORCD_WORKER_API_ORCD_REQUEST_TRANSLATION_H_
#define ORCD_WORKER_API_ORCD_REQUEST_TRANSLATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/request.h"
#include "runtime/model/model.h"

namespace orcd {

// Converts everything of `request` but the sink. Absent fields get the default that worker.proto
// gives; an absent id or seed is generated. Fails with kInvalidArgument naming the field by its
// path in the request, or with the template's errors (see ChatTemplate::Render). Engine::Submit
// does the checks that only the engine can do (room in the context and the queue).
absl::StatusOr<GenerationRequest> TranslateRequest(const v1::GenerateRequest& request,
                                                   const Model& model, absl::Time arrival,
                                                   absl::Time deadline);

// The parts of TranslateRequest. TranslateParameters converts everything but the prompt and is
// cheap; TranslatePrompt encodes the prompt, which may take seconds; LeastPromptTokens returns a
// lower bound of the prompt's tokens from its bytes alone.
absl::StatusOr<GenerationRequest> TranslateParameters(const v1::GenerateRequest& request,
                                                      const Model& model, absl::Time arrival,
                                                      absl::Time deadline);
absl::StatusOr<std::vector<int32_t>> TranslatePrompt(const v1::GenerateRequest& request,
                                                     const Model& model);
int64_t LeastPromptTokens(const v1::GenerateRequest& request, const Model& model);

// Returns the tokens of a TokenizeRequest, exactly as Generate encodes them.
absl::StatusOr<std::vector<int32_t>> TranslateInput(const v1::TokenizeRequest& request,
                                                    const Model& model);

// Fails with kInvalidArgument naming `request_id` unless `id` has 1 to 128 characters of
// [A-Za-z0-9._:-].
absl::Status CheckRequestId(const std::string& id);

// Returns 16 hex digits from the system's random source.
std::string MakeRequestId();

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_REQUEST_TRANSLATION_H_
