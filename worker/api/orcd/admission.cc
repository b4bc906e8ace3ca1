#include "worker/api/orcd/admission.h"

#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/base/messages.h"
#include "worker/host/within_memory.h"

namespace orcd {
namespace {

absl::StatusOr<Ticket> Encode(RequestBuilder& asked, absl::Time arrival, absl::Time deadline,
                              ModelHost& host) {
  ORCD_ASSIGN_OR_RETURN(EngineLease admitted, host.Admit(asked.model_id()));
  Ticket ticket;
  ticket.lease = std::make_shared<EngineLease>(std::move(admitted));
  Engine& engine = ticket.lease->engine();
  asked.request().arrival = arrival;
  asked.request().deadline = deadline;
  ORCD_RETURN_IF_ERROR(asked.CheckParameters(engine.model()));
  ORCD_RETURN_IF_ERROR(asked.CheckNumerics(engine.backend_info().numeric_identity));
  // A request without room is refused before the work of compiling, rendering and encoding. Tokens
  // without a constraint need none of these, so Submit decides at once.
  const auto check = [&] {
    return engine.CheckAhead(asked.request(), asked.LeastPromptTokens(engine.model()));
  };
  if (asked.must_encode() || asked.constraint() != nullptr) ORCD_RETURN_IF_ERROR(check());
  ORCD_RETURN_IF_ERROR(asked.CompileConstraint(engine.model(), ticket.lease->constraints()));
  if (asked.must_encode()) {
    ORCD_RETURN_IF_ERROR(asked.RenderPrompt(engine.model()));
    ORCD_RETURN_IF_ERROR(check());
  }
  if (deadline <= SteadyNow()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the request's deadline passed before it could be read",
                     {.reason = "DEADLINE_EXCEEDED"});
  }
  ORCD_RETURN_IF_ERROR(asked.EncodePrompt(engine.model()));
  ticket.request = std::move(asked.request());
  return ticket;
}

}  // namespace

absl::StatusOr<Ticket> Admit(RequestBuilder asked, const grpc::CallbackServerContext& context,
                             absl::Time arrival, absl::Time deadline, ModelHost& host,
                             Telemetry* telemetry) {
  ORCD_ASSIGN_OR_RETURN(Ticket ticket,
                        WithinMemory([&] { return Encode(asked, arrival, deadline, host); }));
  const std::string& id = ticket.request.id;
  if (telemetry != nullptr) {
    ticket.observer =
        telemetry->ObserveRequest(telemetry->ContextOf(context), id, asked.model_id(), arrival);
  }
  ticket.cancel = [&host, telemetry, lease = ticket.lease, id] {
    lease->engine().Cancel(
        id, FinishReason::kCancelled,
        [&host, released = Telemetry::TimeRelease(telemetry)](bool found) mutable {
          // The metrics take locks, and the engine thread must wait for none.
          host.threads().writes.Do([released = std::move(released), found] { released(found); });
        });
  };
  return ticket;
}

absl::Status Start(Ticket ticket, std::shared_ptr<GenerationSink> sink,
                   std::shared_ptr<StepListener> step_listener) {
  ticket.request.sink = std::move(sink);
  ticket.request.step_listener = std::move(step_listener);
  // The sink's call holds the request's own lease and releases it when the request ends, which may
  // be before Submit has returned. Borrow another one for the duration of Submit.
  const EngineLease borrowed = ticket.lease->Borrow();
  ticket.lease = nullptr;
  return borrowed.engine().Submit(std::move(ticket.request));
}

absl::Status ClientGone() {
  return MakeError(absl::StatusCode::kCancelled, "the client went away", {.reason = "CANCELLED"});
}

std::shared_ptr<UnreadRequests::Entry> RegisterUnread(ModelHost& host,
                                                      const grpc::ByteBuffer& bytes,
                                                      std::span<const int> path) {
  return host.threads().unread.Add(PeekString(bytes, path));
}

absl::Status CheckNotCancelled(const UnreadRequests::Entry& unread) {
  if (!unread.is_cancelled()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kCancelled, "the request was cancelled before it was read",
                   {.reason = "CANCELLED"});
}

void CountRefusal(Telemetry* telemetry, const absl::Status& status) {
  if (telemetry == nullptr) return;
  telemetry->metrics().OnRequestRefused(status.code(), GetErrorDetails(status).reason);
}

}  // namespace orcd
