// A call that generates, independent of its protocol: from orcd.v1's request to a stream that the
// engine writes to.
#ifndef ORCD_WORKER_API_ORCD_GENERATE_CALL_H_
#define ORCD_WORKER_API_ORCD_GENERATE_CALL_H_

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
#include "worker/api/orcd/prepared_request.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/request_observer.h"
#include "worker/observe/telemetry.h"
#include "worker/stream/response_encoder.h"
#include "worker/stream/token_stream.h"
#include "worker/stream/unread_requests.h"

namespace orcd {

// A generation request, parsed from a protocol's bytes.
struct GenerateAsked {
  v1::GenerateRequest request;
  // Makes the response encoder. The GenerationRequest it gets lacks only its sink.
  std::function<std::unique_ptr<ResponseEncoder>(const GenerationRequest&, const Engine&)> encoder;
};

struct GenerateCallOptions {
  // For the log.
  std::string method;
  TokenStreamLimits limits = {};
  // Null: nothing is measured.
  Telemetry* telemetry = nullptr;
  // Number of the field that holds the request's id in the protocol's message.
  int id_field;
  // Parses the request, on a thread of the host's pool.
  std::function<absl::StatusOr<GenerateAsked>(const grpc::ByteBuffer&)> read;
  // Converts the status of a refused request to the protocol's wording.
  std::function<absl::Status(const absl::Status&)> in_words = [](const absl::Status& status) {
    return status;
  };
};

// A request ready for the engine, and the objects that its call needs.
struct PreparedCall {
  PreparedRequest prepared;
  // Null if nothing is measured.
  std::shared_ptr<RequestObserver> observer;
  // Asks the engine to end the request. Holds the request's lease.
  std::function<void()> cancel;
};

// Fails with the errors of PrepareRequest. `telemetry` may be null.
absl::StatusOr<PreparedCall> PrepareCall(const grpc::CallbackServerContext& context,
                                         const v1::GenerateRequest& proto, absl::Time arrival,
                                         absl::Time deadline, ModelHost& host,
                                         Telemetry* telemetry);

// Submits the request to the engine with `call` as its sink. If the engine refuses it, the call
// ends with that status. `ticket` belongs to the request; null if
// nobody can cancel it by its id.
template <typename Call>
void SubmitCall(PreparedRequest prepared, const UnreadRequests::Ticket* ticket,
                const std::shared_ptr<Call>& call) {
  prepared.request.sink = call;
  // The call holds the request's own lease and releases it when the request ends, which may be
  // before Submit has returned. Borrow another one for the duration of Submit.
  const EngineLease borrowed = prepared.lease->Borrow();
  prepared.lease = nullptr;
  if (absl::Status status = borrowed.engine().Submit(std::move(prepared.request)); !status.ok()) {
    call->Refuse(status);
  } else {
    call->OnSubmitted(ticket != nullptr && ticket->is_cancelled());
  }
}

// Returns the call's reactor. The host's pool reads and encodes the request; if the pool or the
// engine refuses it, the call ends. `host`, `log` and the telemetry must outlive the call.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerateCall(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& bytes,
                                                              ModelHost& host, const Logger& log,
                                                              GenerateCallOptions options);

// Status of a request whose client left before it was begun.
absl::Status ClientGone();

// Registers a request that goes to the host's pool under its id, which stands at `path` in its
// message.
std::shared_ptr<UnreadRequests::Ticket> NoteUnread(ModelHost& host, const grpc::ByteBuffer& bytes,
                                                   std::span<const int> path);

// Returns kCancelled if somebody cancelled this request's id before it was parsed.
absl::Status CheckNotCancelled(const UnreadRequests::Ticket& ticket);

// Counts the refusal of a call that has no stream. `telemetry` may be null.
void CountRefusal(Telemetry* telemetry, const absl::Status& status);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_GENERATE_CALL_H_
