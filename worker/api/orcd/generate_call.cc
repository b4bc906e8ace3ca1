#include "worker/api/orcd/generate_call.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/api/orcd/admission.h"
#include "worker/host/within_memory.h"
#include "worker/stream/call_deadline.h"
#include "worker/stream/refused_call.h"

namespace orcd {
namespace {

// Parses the request, admits and starts it. If the result is not OK, nothing has begun.
absl::Status Run(grpc::CallbackServerContext* context, const grpc::ByteBuffer& bytes,
                 absl::Time arrival, absl::Time deadline, ModelHost& host,
                 const GenerateCallOptions& options, const UnreadRequests::Entry& unread,
                 const std::shared_ptr<TokenStream>& stream) {
  if (stream->client_gone()) return ClientGone();
  ORCD_RETURN_IF_ERROR(CheckNotCancelled(unread));
  ORCD_ASSIGN_OR_RETURN(GenerateAsked asked, WithinMemory([&] { return options.read(bytes); }));
  ORCD_ASSIGN_OR_RETURN(
      Ticket ticket, Admit(std::move(asked.request), *context, arrival,
                           std::min(deadline, arrival + asked.timeout), host, options.telemetry));
  stream->Begin({.id = ticket.request.id,
                 .seed = ticket.request.sampling.seed,
                 .encoder = asked.encoder(ticket.request, ticket.lease->engine()),
                 .observer = std::move(ticket.observer),
                 .cancel = std::move(ticket.cancel)});
  if (absl::Status status = Start(std::move(ticket), stream); !status.ok()) {
    stream->Refuse(status);
  } else {
    stream->OnSubmitted(unread.is_cancelled());
  }
  return absl::OkStatus();
}

// Has the host's pool run the call, whose reactor there is already.
void Post(grpc::CallbackServerContext* context, const grpc::ByteBuffer& bytes, ModelHost& host,
          const Logger& log, GenerateCallOptions options,
          const std::shared_ptr<TokenStream>& stream) {
  const absl::Time arrival = SteadyNow();
  const absl::Time deadline = CallDeadline(*context);
  auto refuse = [stream, &log, telemetry = options.telemetry, method = options.method,
                 in_words = options.in_words](const absl::Status& status) {
    const absl::Status in_their_words = in_words ? in_words(status) : status;
    CountRefusal(telemetry, in_their_words);
    LogRefusal(log, method, in_their_words);
    stream->Refuse(in_their_words);
  };
  auto unread = RegisterUnread(host, bytes, options.id_path);
  const absl::Status posted = host.threads().work.Post(
      bytes.Length(), [context, bytes, arrival, deadline, &host, options = std::move(options),
                       unread = std::move(unread), stream, refuse] {
        const absl::Status status =
            Run(context, bytes, arrival, deadline, host, options, *unread, stream);
        if (!status.ok()) refuse(status);
      });
  if (!posted.ok()) refuse(posted);
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerateCall(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& bytes,
                                                              ModelHost& host, const Logger& log,
                                                              GenerateCallOptions options) {
  auto stream = std::make_shared<TokenStream>(context, &host.threads().writes, options.limits, log);
  auto* const reactor = stream->Serve();
  Post(context, bytes, host, log, std::move(options), stream);
  return reactor;
}

grpc::ServerUnaryReactor* StartUnaryGenerateCall(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer& bytes,
                                                 grpc::ByteBuffer* response, ModelHost& host,
                                                 const Logger& log, GenerateCallOptions options) {
  // The answer is one message, with the end: its client is not a slow reader.
  options.limits.linger = absl::InfiniteDuration();
  auto stream = std::make_shared<TokenStream>(context, &host.threads().writes, options.limits, log);
  auto* const reactor = stream->ServeUnary(response);
  Post(context, bytes, host, log, std::move(options), stream);
  return reactor;
}

}  // namespace orcd
