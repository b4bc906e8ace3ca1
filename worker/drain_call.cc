#include "worker/drain_call.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/error.h"
#include "worker/report_stream.h"
#include "worker/to_proto.h"

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

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDrainCall(grpc::CallbackServerContext* context,
                                                           const v1::DrainRequest& request,
                                                           ModelHost& host, const Logger& log) {
  std::optional<absl::Duration> timeout;
  if (request.has_timeout()) timeout = FromProto(request.timeout());
  if (timeout && *timeout < absl::ZeroDuration()) {
    auto refused = ReportStream::Create(
        context,
        [] {
          return ReportStream::Report{
              .message = nullptr,
              .end = InvalidField("timeout", "is negative; give zero or more, or leave it out")};
        },
        kInterval, [] {});
    refused->Wake();
    return refused.get();
  }
  log.Info("drain begins", {{"by", "call"}});
  host.Drain(timeout);
  auto client_gone = std::make_shared<std::atomic<bool>>(false);
  auto stream = ReportStream::Create(
      context, [&host, client_gone] { return Poll(host, *client_gone); }, kInterval,
      [client_gone] { *client_gone = true; });
  stream->Wake();
  return stream.get();
}

}  // namespace orcd
