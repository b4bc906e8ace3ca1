#include "worker/api/kserve/stream_infer_call.h"

#include "inference/grpc_service.pb.h"
#include "runtime/base/error.h"
#include "worker/api/kserve/infer_reply.h"
#include "worker/api/kserve/infer_translation.h"
#include "worker/base/messages.h"
#include "worker/stream/request_end.h"

namespace orcd::kserve {
namespace {

// True if `delta` has output that `form` sends before the end.
bool IsSent(const InferForm& form, const DeltaEvent& delta) {
  if (!form.stream) return false;
  const bool has_text = form.text && !delta.text.empty();
  const bool has_tokens = (form.token_ids || form.output_tokens) && !delta.tokens.empty();
  return has_text || has_tokens;
}

void Append(const PendingEvents& events, std::vector<grpc::ByteBuffer>& messages) {
  const RequestIdentity& request = *events.request;
  const auto& form = static_cast<const InferForm&>(*request.notes);
  const absl::Status status =
      events.end ? CallStatus(*events.end, request.id, request.seed) : absl::OkStatus();
  const bool has_ended = events.end && status.ok();
  // At most one delta, because a request has one sample.
  const DeltaEvent nothing;
  const DeltaEvent& delta = events.deltas.empty() ? nothing : events.deltas.front();
  if (has_ended || IsSent(form, delta)) {
    inference::ModelStreamInferResponse response;
    InferOutput output = {
        .text = delta.text, .token_ids = delta.tokens, .input_tokens = request.prompt_tokens};
    if (has_ended) output.end = events.end->reason;
    FillReply(form, output, *response.mutable_infer_response());
    SetFinal(has_ended && !form.empty_final, *response.mutable_infer_response());
    messages.push_back(SerializeMessage(response));
  }
  if (has_ended && form.empty_final) {
    InferForm no_outputs;
    no_outputs.id = form.id;
    no_outputs.model_name = form.model_name;
    inference::ModelStreamInferResponse response;
    FillReply(no_outputs, {}, *response.mutable_infer_response());
    SetFinal(true, *response.mutable_infer_response());
    messages.push_back(SerializeMessage(response));
  }
  if (!status.ok()) messages.push_back(SerializeMessage(ErrorReply(form, status)));
}

}  // namespace

absl::StatusOr<MultiplexedAction> StreamInferDialect::Parse(const grpc::ByteBuffer& bytes) const {
  ORCD_ASSIGN_OR_RETURN(const inference::ModelInferRequest request,
                        ParseRequest<inference::ModelInferRequest>(bytes));
  return TranslateInfer(request, InferCallKind::kStream);
}

std::vector<grpc::ByteBuffer> StreamInferDialect::Serialize(std::span<const PendingEvents> pending,
                                                            std::span<const CancelAnswer>) const {
  std::vector<grpc::ByteBuffer> messages;
  for (const PendingEvents& events : pending) Append(events, messages);
  return messages;
}

}  // namespace orcd::kserve
