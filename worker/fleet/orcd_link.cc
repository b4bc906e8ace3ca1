#include "worker/fleet/orcd_link.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "runtime/base/error.h"
#include "worker/base/message_text.h"
#include "worker/base/to_proto.h"

namespace orcd {
namespace {

std::unique_ptr<v1::Orchestrator::Stub> NewStub(
    const OrcdLink::Options& options,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // Use a connection of our own: another channel's may be the one that was given up.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The channel must be ready to connect again whenever a retry is due; its own backoff would grow
  // to two minutes.
  const int reconnect_ms =
      static_cast<int>(std::max<int64_t>(1, absl::ToInt64Milliseconds(options.retry_after / 2)));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, reconnect_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, reconnect_ms);
  return v1::Orchestrator::NewStub(
      grpc::CreateCustomChannel(options.orchestrator, credentials, arguments));
}

// Returns the instance that has the worker_id now, if `status` says that it is another than `own`.
// A status without the instance's name is no proof: an error must not shut a worker down by
// accident.
std::optional<std::string> SupersededBy(const grpc::Status& status, const std::string& own) {
  if (status.error_code() != grpc::StatusCode::ABORTED) return std::nullopt;
  google::rpc::Status rpc;
  if (!rpc.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& detail : rpc.details()) {
    google::rpc::ErrorInfo info;
    if (!detail.UnpackTo(&info) || info.domain() != "orcd" || info.reason() != "SUPERSEDED") {
      continue;
    }
    const auto instance = info.metadata().find("instance_id");
    if (instance != info.metadata().end() && !instance->second.empty() && instance->second != own) {
      return instance->second;
    }
  }
  return std::nullopt;
}

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

template <typename Request>
void Fill(Request& request, const LinkReport& report) {
  *request.mutable_status() = report.status;
  for (const v1::DirectiveOutcome& outcome : report.outcomes) *request.add_outcomes() = outcome;
}

// An absent ttl is zero.
template <typename Response>
absl::StatusOr<absl::Duration> TtlOf(const Response& response) {
  if (!response.has_lease_ttl()) return absl::ZeroDuration();
  return ReadDuration(response.lease_ttl(), "lease_ttl");
}

template <typename Response>
absl::StatusOr<LinkReply> ToReply(const grpc::Status& status, const LinkReport& report,
                                  const Response& response) {
  if (const auto instance = SupersededBy(status, report.status.instance_id())) {
    return LinkReply{.lease_id = {}, .ttl = {}, .directives = {}, .superseded_by = *instance};
  }
  if (!status.ok()) return ToAbsl(status);
  // An invalid ttl becomes zero: a heartbeat then renews the lease for as long as before, and
  // Register refuses it.
  const absl::Duration ttl = TtlOf(response).value_or(absl::ZeroDuration());
  return LinkReply{.lease_id = {},
                   .ttl = ttl,
                   .directives = {response.directives().begin(), response.directives().end()}};
}

}  // namespace

OrcdLink::OrcdLink(Options options)
    : options_(std::move(options)),
      credentials_(options_.tls == nullptr ? grpc::InsecureChannelCredentials()
                                           : options_.tls->credentials()),
      stub_(NewStub(options_, credentials_)) {}

absl::StatusOr<LinkReply> OrcdLink::Register(const LinkReport& report, absl::Duration timeout,
                                             CallCancellation& cancel) {
  v1::RegisterRequest request;
  Fill(request, report);
  request.set_address(options_.address);
  *request.mutable_capabilities() = options_.capabilities;
  MakeTextValid(request);
  v1::RegisterResponse response;
  const grpc::Status status =
      MakeCall(timeout, cancel, [&](Stub& stub, grpc::ClientContext* context) {
        return stub.Register(context, request, &response);
      });
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    maybe_entered_ = true;
  }
  absl::StatusOr<LinkReply> reply = ToReply(status, report, response);
  if (!reply.ok() || !reply->superseded_by.empty()) return reply;
  ORCD_RETURN_IF_ERROR(TtlOf(response).status());
  if (response.lease_id().empty() || reply->ttl <= absl::ZeroDuration()) {
    return absl::InternalError("the reply grants no lease");
  }
  reply->lease_id = response.lease_id();
  return reply;
}

absl::StatusOr<LinkReply> OrcdLink::Heartbeat(const std::string& lease_id, uint64_t sequence,
                                              const LinkReport& report, absl::Duration timeout,
                                              CallCancellation& cancel) {
  v1::HeartbeatRequest request;
  Fill(request, report);
  request.set_lease_id(lease_id);
  request.set_sequence(sequence);
  MakeTextValid(request);
  v1::HeartbeatResponse response;
  const grpc::Status status =
      MakeCall(timeout, cancel, [&](Stub& stub, grpc::ClientContext* context) {
        return stub.Heartbeat(context, request, &response);
      });
  return ToReply(status, report, response);
}

absl::Status OrcdLink::Deregister(const std::string& lease_id, const LinkReport& report,
                                  absl::Duration timeout, CallCancellation& cancel) {
  v1::DeregisterRequest request;
  request.set_lease_id(lease_id);
  request.set_worker_id(report.status.worker_id());
  request.set_instance_id(report.status.instance_id());
  for (const v1::DirectiveOutcome& outcome : report.outcomes) *request.add_outcomes() = outcome;
  MakeTextValid(request);
  v1::DeregisterResponse response;
  return ToAbsl(MakeCall(timeout, cancel, [&](Stub& stub, grpc::ClientContext* context) {
    return stub.Deregister(context, request, &response);
  }));
}

OrcdLink::Stub& OrcdLink::UpToDateStub() {
  if (options_.tls != nullptr) {
    std::shared_ptr<grpc::ChannelCredentials> now = options_.tls->credentials();
    if (now != credentials_) {
      credentials_ = std::move(now);
      stub_ = NewStub(options_, credentials_);
    }
  }
  return *stub_;
}

grpc::Status OrcdLink::MakeCall(absl::Duration timeout, CallCancellation& cancel, const Rpc& rpc) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  grpc::Status status;
  {
    const CallCancellation::Scope scope(cancel, [&context] { context.TryCancel(); });
    status = rpc(UpToDateStub(), &context);
  }
  // If packets vanish, TCP keeps a connection for many minutes after the path works again.
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    stub_ = NewStub(options_, credentials_);
  }
  return status;
}

}  // namespace orcd
