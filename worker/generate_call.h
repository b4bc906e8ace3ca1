// A call that generates, whatever protocol it came by: from orcd.v1's request to a stream that the
// engine writes to.
#ifndef ORCD_WORKER_GENERATE_CALL_H_
#define ORCD_WORKER_GENERATE_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/request.h"
#include "worker/logging.h"
#include "worker/model_host.h"
#include "worker/prepared_request.h"
#include "worker/request_observer.h"
#include "worker/response_encoder.h"
#include "worker/telemetry.h"
#include "worker/token_stream.h"
#include "worker/unread_requests.h"

namespace orcd {

// A request as a protocol's bytes have it.
struct GenerateAsked {
  v1::GenerateRequest request;
  // Makes the encoder of the request, which lacks its sink only.
  std::function<std::unique_ptr<ResponseEncoder>(const GenerationRequest&, const Engine&)> encoder;
};

struct GenerateCallOptions {
  // For the log.
  std::string method;
  TokenStreamLimits limits = {};
  // Null: nothing is measured.
  Telemetry* telemetry = nullptr;
  // The field of the protocol's message that holds the request's id.
  int id_field;
  // Reads the request, on a thread of the host's pool.
  std::function<absl::StatusOr<GenerateAsked>(const grpc::ByteBuffer&)> read;
  // Puts what a request is refused with into the protocol's words.
  std::function<absl::Status(const absl::Status&)> in_words = [](const absl::Status& status) {
    return status;
  };
};

// A request on its way to the engine, and what the call that is to hear of it needs.
struct PreparedCall {
  PreparedRequest prepared;
  // Null where nothing is measured.
  std::shared_ptr<RequestObserver> observer;
  // Asks the engine to end the request; holds the request's lease.
  std::function<void()> cancel;
};

// The errors are those of PrepareRequest. `telemetry` may be null.
absl::StatusOr<PreparedCall> PrepareCall(const grpc::CallbackServerContext& context,
                                         const v1::GenerateRequest& proto, absl::Time arrival,
                                         absl::Time deadline, ModelHost& host,
                                         Telemetry* telemetry);

// Gives the engine the request, whose sink `call` is; where the engine refuses it, so is the call.
// `ticket` is that of the request.
template <typename Call>
void SubmitCall(PreparedRequest prepared, const UnreadRequests::Ticket& ticket,
                const std::shared_ptr<Call>& call) {
  prepared.request.sink = call;
  // The request's own lease is the call's: it goes when the request ends, which may be before
  // Submit has returned.
  const EngineLease borrowed = prepared.lease->Borrow();
  prepared.lease = nullptr;
  if (absl::Status status = borrowed.engine().Submit(std::move(prepared.request)); !status.ok()) {
    call->Refuse(status);
  } else {
    call->OnSubmitted(ticket.is_cancelled());
  }
}

// The call's reactor. The request is read and encoded by the host's pool; where it or the engine
// refuses it, the call ends. `host`, `log` and the telemetry must outlive the call.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerateCall(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& bytes,
                                                              ModelHost& host, const Logger& log,
                                                              GenerateCallOptions options);

// The status of a request whose client left before it was begun.
absl::Status ClientGone();

// Remembers a request that goes to the host's pool, by the id at `path` of its message.
std::shared_ptr<UnreadRequests::Ticket> NoteUnread(ModelHost& host, const grpc::ByteBuffer& bytes,
                                                   std::span<const int> path);

// kCancelled where somebody ended the request with this id before it was read.
absl::Status CheckNotCancelled(const UnreadRequests::Ticket& ticket);

// Of a call that has no stream. `telemetry` may be null.
void CountRefusal(Telemetry* telemetry, const absl::Status& status);

}  // namespace orcd

#endif  // ORCD_WORKER_GENERATE_CALL_H_
