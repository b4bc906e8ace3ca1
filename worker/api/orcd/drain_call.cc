#include "worker/api/orcd/drain_call.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/base/error.h"
#include "worker/base/status_details.h"
#include "worker/base/to_proto.h"
#include "worker/stream/refused_call.h"
#include "worker/stream/report_stream.h"

namespace orcd {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(200);

ReportStream::Report Poll(ModelHost& host, bool client_gone) {
  ReportStream::Report report;
  auto response = std::make_unique<v1::DrainResponse>(host.DrainProgress());
  if (response->safe_to_delete()) {
    report.end = absl::OkStatus();
  } else if (client_gone) {
    report.end = MakeError(absl::StatusCode::kCancelled,
                           "the call was cancelled; the drain goes on", {.reason = "CANCELLED"});
  }
  report.message = std::move(response);
  return report;
}

}  // namespace

absl::StatusOr<std::optional<absl::Duration>> DrainTimeout(const v1::DrainRequest& request) {
  if (!request.has_timeout()) return std::nullopt;
  ORCD_ASSIGN_OR_RETURN(const absl::Duration timeout, ReadDuration(request.timeout(), "timeout"));
  return timeout;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDrainCall(grpc::CallbackServerContext* context,
                                                           const v1::DrainRequest& request,
                                                           ModelHost& host, const Logger& log,
                                                           std::function<void()> on_exit) {
  const absl::StatusOr<std::optional<absl::Duration>> timeout = DrainTimeout(request);
  if (!timeout.ok()) {
    return new RefusedStream(ToGrpcStatus(timeout.status(), context));
  }
  log.Info("drain begins", {{"by", "call"}, {"exit", request.exit()}});
  host.Drain(*timeout);
  if (request.exit()) {
    host.WhenDrained([on_exit = std::move(on_exit)](const absl::Status& status) {
      if (status.ok()) on_exit();
    });
  }
  auto client_gone = std::make_shared<std::atomic<bool>>(false);
  auto stream = std::make_shared<ReportStream>(
      context, [&host, client_gone] { return Poll(host, *client_gone); }, kInterval,
      [client_gone] { *client_gone = true; });
  auto* const reactor = stream->Serve();
  stream->Wake();
  return reactor;
}

}  // namespace orcd
