#include "worker/api/orcd/generate_encoder.h"

#include <utility>

#include "orcd/v1/worker.pb.h"
#include "worker/base/messages.h"
#include "worker/base/to_proto.h"

namespace orcd {

GenerateEncoder::GenerateEncoder(std::string id, uint64_t seed, std::string model_digest,
                                 std::string numeric_identity)
    : id_(std::move(id)),
      seed_(seed),
      model_digest_(std::move(model_digest)),
      numeric_identity_(std::move(numeric_identity)) {}

std::optional<grpc::ByteBuffer> GenerateEncoder::OnStarted(const StartedEvent& event) {
  was_started_ = true;
  v1::GenerateResponse message;
  v1::GenerateStarted& started = *message.mutable_started();
  started.set_request_id(id_);
  started.set_prompt_tokens(event.prompt_tokens);
  started.set_cached_prompt_tokens(event.cached_prompt_tokens);
  started.set_seed(seed_);
  started.set_numeric_identity(numeric_identity_);
  return SerializeMessage(message);
}

std::optional<grpc::ByteBuffer> GenerateEncoder::OnDelta(DeltaEvent event) {
  v1::GenerateResponse message;
  AppendTo(*message.mutable_delta(), event);
  return SerializeMessage(message);
}

ResponseEncoder::End GenerateEncoder::OnFinished(const FinishedEvent& event,
                                                 const absl::Status& status) {
  End end{.status = status};
  if (was_started_) {
    v1::GenerateResponse message;
    *message.mutable_finished() = ToProto(event, model_digest_);
    end.messages.push_back(SerializeMessage(message));
  }
  return end;
}

}  // namespace orcd
