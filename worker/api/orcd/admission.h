// The two steps that take a request of any protocol to the engine: Admit and Start.
#ifndef ORCD_WORKER_API_ORCD_ADMISSION_H_
#define ORCD_WORKER_API_ORCD_ADMISSION_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine/request.h"
#include "worker/api/orcd/request_builder.h"
#include "worker/host/model_host.h"
#include "worker/observe/request_observer.h"
#include "worker/observe/telemetry.h"
#include "worker/stream/unread_requests.h"

namespace orcd {

// A request that may start. It counts as running until the lease and `cancel` are dropped, which
// must be when the request has ended.
struct Ticket {
  // Complete except for its sink.
  GenerationRequest request;
  std::shared_ptr<EngineLease> lease;
  // Null if nothing is measured.
  std::shared_ptr<RequestObserver> observer;
  // Asks the engine to end the request. Holds the lease.
  std::function<void()> cancel;
};

// Checks, renders and encodes a request. One without room in the queue is refused before the work
// of either. Its constraint begins to compile before its prompt is rendered. Fails with the errors
// of ModelHost::Admit, Engine::CheckAhead and RequestBuilder, and with kDeadlineExceeded. `host`
// and `telemetry`, which may be null, must outlive the ticket.
absl::StatusOr<Ticket> Admit(RequestBuilder asked, const grpc::CallbackServerContext& context,
                             absl::Time arrival, absl::Time deadline, ModelHost& host,
                             Telemetry* telemetry);

// Submits the ticket's request to the engine. The caller has moved `observer` and `cancel` to the
// sink's call before: the request may end before this returns. Fails with the errors of
// Engine::Submit; then the sink gets no event.
absl::Status Start(Ticket ticket, std::shared_ptr<GenerationSink> sink,
                   std::shared_ptr<StepListener> step_listener = nullptr);

// Status of a request whose client left before it was begun.
absl::Status ClientGone();

// Registers a request that goes to the host's pool under its id, which stands at `path` in its
// message.
std::shared_ptr<UnreadRequests::Entry> RegisterUnread(ModelHost& host,
                                                      const grpc::ByteBuffer& bytes,
                                                      std::span<const int> path);

// Returns kCancelled if somebody cancelled this request's id before it was parsed.
absl::Status CheckNotCancelled(const UnreadRequests::Entry& unread);

// Counts the refusal of a call that has no stream. `telemetry` may be null.
void CountRefusal(Telemetry* telemetry, const absl::Status& status);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_ADMISSION_H_
