// Answers to inference requests.
#ifndef ORCD_WORKER_API_KSERVE_INFER_REPLY_H_
#define ORCD_WORKER_API_KSERVE_INFER_REPLY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "runtime/engine/request.h"
#include "worker/api/kserve/infer_translation.h"

namespace orcd::kserve {

// The content of one answer.
struct InferOutput {
  std::string_view text = {};
  // Without the token that ended the generation, which is not part of the output.
  std::span<const int32_t> token_ids = {};
  int32_t input_tokens = 0;
  // Unset if the request goes on.
  std::optional<FinishReason> end = std::nullopt;
};

// Sets the name, the id, and the outputs that `form` asks for. `finish_reason` is `stop`, `length`,
// or `None` if the request goes on, as in Triton's vLLM backend.
void FillReply(const InferForm& form, const InferOutput& output,
               inference::ModelInferResponse& reply);

// Marks an answer in a stream: true if it is the request's last.
void SetFinal(bool is_final, inference::ModelInferResponse& reply);

// Reports that the request has ended with `status`, which is not OK: code and message as text, code
// and reason as parameters.
inference::ModelStreamInferResponse ErrorReply(const InferForm& form, const absl::Status& status);

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_INFER_REPLY_H_
