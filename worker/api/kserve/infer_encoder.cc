#include "worker/api/kserve/infer_encoder.h"

#include "worker/api/kserve/infer_reply.h"
#include "worker/base/messages.h"

namespace orcd::kserve {

std::optional<grpc::ByteBuffer> InferEncoder::OnDelta(DeltaEvent event) {
  text_ += event.text;
  token_ids_.insert(token_ids_.end(), event.tokens.begin(), event.tokens.end());
  return std::nullopt;
}

ResponseEncoder::End InferEncoder::OnFinished(const FinishedEvent& event,
                                              const absl::Status& status) {
  if (!status.ok()) return {.status = InInferWords(status)};
  inference::ModelInferResponse reply;
  FillReply(*form_,
            {.text = text_,
             .token_ids = token_ids_,
             .input_tokens = event.prompt_tokens,
             .end = event.reason},
            reply);
  if (absl::Status fits = CheckReplySize(reply.ByteSizeLong()); !fits.ok()) return {.status = fits};
  return {.messages = {SerializeMessage(reply)}};
}

}  // namespace orcd::kserve
