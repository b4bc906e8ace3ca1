// From a request on the wire to what the engine takes: checked, rendered, encoded.
#ifndef ORCD_WORKER_REQUEST_TRANSLATION_H_
#define ORCD_WORKER_REQUEST_TRANSLATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/request.h"
#include "runtime/model/model.h"

namespace orcd {

// Everything of `request` but the sink. What is absent gets the default worker.proto gives; an
// absent id or seed is made up. kInvalidArgument names the field by its path in the request; the
// template's errors are ChatTemplate::Render's. What only the engine can know (room in the context
// and the queue) is left to Engine::Submit.
absl::StatusOr<GenerationRequest> TranslateRequest(const v1::GenerateRequest& request,
                                                   const Model& model, absl::Time arrival,
                                                   absl::Time deadline);

// The parts of it. All but the prompt, which is cheap; the prompt's tokens, which may take seconds;
// and how many tokens the prompt has at least, by its bytes alone.
absl::StatusOr<GenerationRequest> TranslateParameters(const v1::GenerateRequest& request,
                                                      const Model& model, absl::Time arrival,
                                                      absl::Time deadline);
absl::StatusOr<std::vector<int32_t>> TranslatePrompt(const v1::GenerateRequest& request,
                                                     const Model& model);
int64_t LeastPromptTokens(const v1::GenerateRequest& request, const Model& model);

// The tokens of a TokenizeRequest, exactly as Generate encodes them.
absl::StatusOr<std::vector<int32_t>> TranslateInput(const v1::TokenizeRequest& request,
                                                    const Model& model);

// 1 to 128 characters of [A-Za-z0-9._:-], else kInvalidArgument naming `request_id`.
absl::Status CheckRequestId(const std::string& id);

// 16 hex digits from the system's random source.
std::string MakeRequestId();

}  // namespace orcd

#endif  // ORCD_WORKER_REQUEST_TRANSLATION_H_
