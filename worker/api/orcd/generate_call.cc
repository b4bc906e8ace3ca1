#include "worker/api/orcd/generate_call.h"

#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/base/messages.h"
#include "worker/host/within_memory.h"
#include "worker/stream/call_deadline.h"
#include "worker/stream/refused_call.h"

namespace orcd {

absl::StatusOr<PreparedCall> PrepareCall(const grpc::CallbackServerContext& context,
                                         const v1::GenerateRequest& proto, absl::Time arrival,
                                         absl::Time deadline, ModelHost& host,
                                         Telemetry* telemetry) {
  PreparedCall call;
  ORCD_ASSIGN_OR_RETURN(
      call.prepared, WithinMemory([&] { return PrepareRequest(proto, host, arrival, deadline); }));
  const std::string& id = call.prepared.request.id;
  if (telemetry != nullptr) {
    call.observer =
        telemetry->ObserveRequest(telemetry->ContextOf(context), id, proto.model_id(), arrival);
  }
  call.cancel = [&host, telemetry, lease = call.prepared.lease, id] {
    lease->engine().Cancel(
        id, FinishReason::kCancelled,
        [&host, released = Telemetry::TimeRelease(telemetry)](bool found) mutable {
          // The metrics take locks, and the engine thread must wait for none.
          host.threads().writes.Do([released = std::move(released), found] { released(found); });
        });
  };
  return call;
}

namespace {

// Parses the request and submits it to the engine. If the result is not OK, nothing has begun.
absl::Status Admit(grpc::CallbackServerContext* context, const grpc::ByteBuffer& bytes,
                   absl::Time arrival, absl::Time deadline, ModelHost& host,
                   const GenerateCallOptions& options, const UnreadRequests::Ticket& ticket,
                   const std::shared_ptr<TokenStream>& stream) {
  if (stream->client_gone()) return ClientGone();
  ORCD_RETURN_IF_ERROR(CheckNotCancelled(ticket));
  ORCD_ASSIGN_OR_RETURN(const GenerateAsked asked,
                        WithinMemory([&] { return options.read(bytes); }));
  ORCD_ASSIGN_OR_RETURN(PreparedCall call, PrepareCall(*context, asked.request, arrival, deadline,
                                                       host, options.telemetry));
  const GenerationRequest& request = call.prepared.request;
  stream->Begin({.id = request.id,
                 .seed = request.sampling.seed,
                 .encoder = asked.encoder(request, call.prepared.lease->engine()),
                 .observer = std::move(call.observer),
                 .cancel = std::move(call.cancel)});
  SubmitCall(std::move(call.prepared), &ticket, stream);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerateCall(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& bytes,
                                                              ModelHost& host, const Logger& log,
                                                              GenerateCallOptions options) {
  const absl::Time arrival = SteadyNow();
  const absl::Time deadline = CallDeadline(*context);
  auto stream = TokenStream::Create(context, &host.threads().writes, options.limits, log);
  auto refuse = [stream, &log, telemetry = options.telemetry, method = options.method,
                 in_words = options.in_words](const absl::Status& status) {
    const absl::Status in_their_words = in_words(status);
    CountRefusal(telemetry, in_their_words);
    LogRefusal(log, method, in_their_words);
    stream->Refuse(in_their_words);
  };
  const int id_path[] = {options.id_field};
  auto ticket = NoteUnread(host, bytes, id_path);
  const absl::Status posted = host.threads().work.Post(
      bytes.Length(), [context, bytes, arrival, deadline, &host, options = std::move(options),
                       ticket = std::move(ticket), stream, refuse] {
        const absl::Status status =
            Admit(context, bytes, arrival, deadline, host, options, *ticket, stream);
        if (!status.ok()) refuse(status);
      });
  if (!posted.ok()) refuse(posted);
  return stream.get();
}

absl::Status ClientGone() {
  return MakeError(absl::StatusCode::kCancelled, "the client went away", {.reason = "CANCELLED"});
}

std::shared_ptr<UnreadRequests::Ticket> NoteUnread(ModelHost& host, const grpc::ByteBuffer& bytes,
                                                   std::span<const int> path) {
  return host.threads().unread.Add(PeekString(bytes, path));
}

absl::Status CheckNotCancelled(const UnreadRequests::Ticket& ticket) {
  if (!ticket.is_cancelled()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kCancelled, "the request was cancelled before it was read",
                   {.reason = "CANCELLED"});
}

void CountRefusal(Telemetry* telemetry, const absl::Status& status) {
  if (telemetry == nullptr) return;
  telemetry->metrics().OnRequestRefused(status.code(), GetErrorDetails(status).reason);
}

}  // namespace orcd
