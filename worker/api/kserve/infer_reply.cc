#include "worker/api/kserve/infer_reply.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/api/kserve/tensors.h"
#include "worker/base/status_details.h"

namespace orcd::kserve {
namespace {

bool EndedByToken(FinishReason reason) {
  return reason == FinishReason::kEog || reason == FinishReason::kStopToken;
}

const char* FinishReasonName(const std::optional<FinishReason>& end) {
  if (!end) return "None";
  return EndedByToken(*end) || *end == FinishReason::kStopString ? "stop" : "length";
}

}  // namespace

void FillReply(const InferForm& form, const InferOutput& output,
               inference::ModelInferResponse& reply) {
  reply.set_model_name(form.model_name);
  reply.set_model_version(kModelVersion);
  reply.set_id(form.id);
  OutputWriter writer(reply, form.raw);
  if (form.text) writer.AddBytes(kTextOutput, output.text);
  if (form.finish_reason) writer.AddBytes(kFinishReason, FinishReasonName(output.end));
  if (form.token_ids) writer.AddInt32s(kTokenIds, output.token_ids);
  if (form.input_tokens) writer.AddUint32(kInputTokens, static_cast<uint32_t>(output.input_tokens));
  if (form.output_tokens) {
    // Counts every drawn token, including the one that ended the generation.
    const size_t hidden = output.end && EndedByToken(*output.end) ? 1 : 0;
    writer.AddUint32(kOutputTokens, static_cast<uint32_t>(output.token_ids.size() + hidden));
  }
}

void SetFinal(bool is_final, inference::ModelInferResponse& reply) {
  (*reply.mutable_parameters())["triton_final_response"].set_bool_param(is_final);
}

inference::ModelStreamInferResponse ErrorReply(const InferForm& form, const absl::Status& status) {
  const absl::Status told = InInferWords(status);
  inference::ModelStreamInferResponse response;
  const std::string code = absl::StatusCodeToString(told.code());
  // Triton's client keeps only the message of an error, so the message begins with the code.
  response.set_error_message(absl::StrCat(code, ": ", ToRpcStatus(told).message()));
  inference::ModelInferResponse& reply = *response.mutable_infer_response();
  reply.set_id(form.id);
  SetFinal(true, reply);
  auto& parameters = *reply.mutable_parameters();
  parameters["error_code"].set_string_param(code);
  parameters["error_reason"].set_string_param(GetErrorDetails(told).reason);
  return response;
}

}  // namespace orcd::kserve
