// Reads orcd.v1's requests for the engine.
#ifndef ORCD_WORKER_API_ORCD_REQUEST_TRANSLATION_H_
#define ORCD_WORKER_API_ORCD_REQUEST_TRANSLATION_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/model/model.h"
#include "worker/api/orcd/request_builder.h"

namespace orcd {

struct TranslationOptions {
  // True if a conversation may bring its own chat template.
  bool allow_request_templates = false;
};

// Takes over everything of `request`; its prompt is moved.
RequestBuilder TranslateRequest(v1::GenerateRequest request,
                                const TranslationOptions& options = {});

// Returns the tokens of a TokenizeRequest, exactly as Generate encodes them. Fails with
// kInvalidArgument naming the field, or with the template's errors (see ChatTemplate::Render).
absl::StatusOr<std::vector<int32_t>> TranslateInput(v1::TokenizeRequest request, const Model& model,
                                                    const TranslationOptions& options = {});

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_REQUEST_TRANSLATION_H_
