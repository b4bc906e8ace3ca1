#include "worker/api/orcd/generate_many_call.h"

#include <google/protobuf/arena.h>

#include <string>
#include <utility>

#include "orcd/v1/worker.pb.h"
#include "runtime/base/error.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"
#include "worker/base/to_proto.h"
#include "worker/stream/request_end.h"

namespace orcd {
namespace {

constexpr int kIdPath[] = {v1::GenerateManyRequest::kGenerateFieldNumber,
                           v1::GenerateRequest::kRequestIdFieldNumber};

}  // namespace

std::span<const int> GenerateManyDialect::id_path() const { return kIdPath; }

absl::StatusOr<MultiplexedAction> GenerateManyDialect::Parse(const grpc::ByteBuffer& bytes) const {
  ORCD_ASSIGN_OR_RETURN(v1::GenerateManyRequest request,
                        ParseRequest<v1::GenerateManyRequest>(bytes));
  switch (request.action_case()) {
    case v1::GenerateManyRequest::kGenerate: {
      MultiplexedGenerate asked;
      asked.request = TranslateRequest(std::move(*request.mutable_generate()), options_);
      if (request.has_timeout()) {
        // An invalid timeout ends its own request and no other.
        const absl::StatusOr<absl::Duration> timeout = ReadDuration(request.timeout(), "timeout");
        if (timeout.ok()) {
          asked.timeout = *timeout;
        } else {
          asked.refusal = timeout.status();
        }
      }
      return asked;
    }
    case v1::GenerateManyRequest::kCancel:
      ORCD_RETURN_IF_ERROR(CheckRequestId(request.cancel().request_id()));
      return MultiplexedCancel{request.cancel().request_id()};
    case v1::GenerateManyRequest::ACTION_NOT_SET:
      break;
  }
  return InvalidField("action", "is missing; set generate or cancel");
}

std::vector<grpc::ByteBuffer> GenerateManyDialect::Serialize(
    std::span<const PendingEvents> pending, std::span<const CancelAnswer> answers) const {
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<v1::GenerateManyResponse>(&arena);
  const auto add = [&](const std::string& id) {
    v1::GenerateEvent* event = message->add_events();
    event->set_request_id(id);
    return event;
  };
  for (const PendingEvents& batch : pending) {
    const RequestIdentity& request = *batch.request;
    if (batch.started) {
      v1::GenerateStarted* started = add(request.id)->mutable_started();
      started->set_request_id(request.id);
      started->set_prompt_tokens(batch.started->prompt_tokens);
      started->set_cached_prompt_tokens(batch.started->cached_prompt_tokens);
      started->set_seed(request.seed);
      started->set_numeric_identity(request.numeric_identity);
    }
    for (const DeltaEvent& delta : batch.deltas) AppendTo(*add(request.id)->mutable_delta(), delta);
    if (batch.end) {
      v1::GenerateEnd* end = add(request.id)->mutable_end();
      const absl::Status status = CallStatus(*batch.end, request.id, request.seed);
      if (request.was_started) *end->mutable_finished() = ToProto(*batch.end, request.model_digest);
      if (!status.ok()) *end->mutable_status() = ToRpcStatus(status);
    }
  }
  for (const CancelAnswer& answer : answers) {
    add(answer.request_id)->mutable_cancelled()->set_found(answer.found);
  }
  std::vector<grpc::ByteBuffer> messages;
  messages.push_back(SerializeMessage(*message));
  return messages;
}

}  // namespace orcd
