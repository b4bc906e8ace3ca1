#include "worker/registration.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace orcd {
namespace {

using orcd::v1::DeregisterRequest;
using orcd::v1::DeregisterResponse;
using orcd::v1::HeartbeatRequest;
using orcd::v1::HeartbeatResponse;
using orcd::v1::RegisterRequest;
using orcd::v1::RegisterResponse;
using orcd::v1::WorkerStatus;

constexpr absl::Duration kMinRpcTimeout = absl::Milliseconds(100);

Lease::Time Now() { return std::chrono::steady_clock::now(); }

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::unique_ptr<orcd::v1::Orchestrator::Stub> NewStub(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    const Lease::Backoff& backoff) {
  grpc::ChannelArguments arguments;
  // A connection of its own: another channel's may be the one that was given up.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The channel must be ready to connect again whenever a retry is due; its own backoff would grow
  // to two minutes.
  const int reconnect_ms =
      static_cast<int>(std::max<int64_t>(1, absl::ToInt64Milliseconds(backoff.initial / 2)));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, reconnect_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, reconnect_ms);
  return orcd::v1::Orchestrator::NewStub(
      grpc::CreateCustomChannel(address, credentials, arguments));
}

// The instance that has the worker_id now, where `status` says that it is another than `own`.
// Without its name it is no proof: a worker must not be put away by a slip.
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

std::string_view ActionName(const v1::Directive& directive) {
  const auto* field = directive.GetDescriptor()->FindFieldByNumber(directive.action_case());
  return field == nullptr ? std::string_view("none") : std::string_view(field->name());
}

template <typename Request>
void AddOutcomes(Request& request, const Directives::Report& report) {
  for (const v1::DirectiveOutcome& outcome : report.outcomes) *request.add_outcomes() = outcome;
}

}  // namespace

Registration::Registration(Options options, std::function<WorkerStatus()> status,
                           const Logger* logger)
    : options_(std::move(options)),
      status_(std::move(status)),
      logger_(*logger),
      directives_(Directives::Create(options_.directives, [this] { NotifyStateChanged(); })),
      lease_(options_.orchestrators.size(), options_.backoff, RandomSeed()) {
  for (const std::string& address : options_.orchestrators) {
    stubs_.push_back(NewStub(address, options_.credentials, options_.backoff));
  }
}

Registration::~Registration() { Stop(absl::ZeroDuration()); }

void Registration::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Registration::NotifyStateChanged() {
  {
    std::lock_guard lock(mu_);
    state_changed_ = true;
  }
  wake_.notify_all();
}

void Registration::Stop(absl::Duration grace) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
    stopping_ = true;
    stop_by_ = Now() + absl::ToChronoNanoseconds(std::min(grace, absl::Hours(1)));
    if (in_flight_ != nullptr) in_flight_->TryCancel();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  directives_->Close();
}

void Registration::Run() {
  Lease::Call call;
  while (WaitForCall(&call)) {
    switch (call.action) {
      case Lease::Action::kRegister:
        Register(call.orchestrator);
        break;
      case Lease::Action::kHeartbeat:
        Heartbeat(call.orchestrator);
        break;
    }
  }
  // What is entered under the worker_id of a superseded worker is another.
  if (maybe_entered_ && !superseded_) Deregister();
}

bool Registration::WaitForCall(Lease::Call* call) {
  std::unique_lock lock(mu_);
  while (!stopping_ && !superseded_) {
    const Lease::Time now = Now();
    if (std::exchange(state_changed_, false)) lease_.OnStateChanged(now);
    *call = lease_.NextCall(now);
    if (call->at <= now) return true;
    wake_.wait_until(lock, call->at);
  }
  return false;
}

void Registration::Register(size_t orchestrator) {
  RegisterRequest request;
  *request.mutable_status() = status_();
  request.set_address(options_.address);
  *request.mutable_capabilities() = options_.capabilities;
  const Directives::Report report = directives_->MakeReport();
  AddOutcomes(request, report);
  RegisterResponse response;
  const Lease::Time sent = Now();
  grpc::Status status =
      MakeCall(orchestrator, options_.rpc_timeout, [&](Stub& stub, grpc::ClientContext* context) {
        return stub.Register(context, request, &response);
      });
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    maybe_entered_ = true;
  }
  if (const auto instance = SupersededBy(status, request.status().instance_id())) {
    EndSuperseded(orchestrator, *instance);
    return;
  }
  const absl::Duration ttl = FromProto(response.lease_ttl());
  if (status.ok() && (response.lease_id().empty() || ttl <= absl::ZeroDuration())) {
    status = grpc::Status(grpc::StatusCode::INTERNAL, "the reply grants no lease");
  }
  if (!status.ok()) {
    options_.on_heartbeat("unregistered");
    HandleFailure(orchestrator, "Register", status);
    return;
  }
  failing_ = false;
  lease_.OnGranted(response.lease_id(), ttl, sent);
  logger_.Info("registered", {{"orchestrator", options_.orchestrators[orchestrator]},
                              {"lease_id", lease_.id()},
                              {"lease_ttl", absl::FormatDuration(ttl)}});
  TakeDirectives(response, report);
}

void Registration::Heartbeat(size_t orchestrator) {
  HeartbeatRequest request;
  request.set_lease_id(lease_.id());
  request.set_sequence(lease_.TakeSequence());
  *request.mutable_status() = status_();
  const Directives::Report report = directives_->MakeReport();
  AddOutcomes(request, report);
  HeartbeatResponse response;
  const Lease::Time sent = Now();
  // Half of what is left leaves time to try another orchestrator while the lease holds.
  const absl::Duration timeout =
      std::min(options_.rpc_timeout, std::max(lease_.Remaining(sent) / 2, kMinRpcTimeout));
  const grpc::Status status =
      MakeCall(orchestrator, timeout, [&](Stub& stub, grpc::ClientContext* context) {
        return stub.Heartbeat(context, request, &response);
      });
  if (const auto instance = SupersededBy(status, request.status().instance_id())) {
    options_.on_heartbeat("superseded");
    EndSuperseded(orchestrator, *instance);
    return;
  }
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
    options_.on_heartbeat("unknown_lease");
    logger_.Info(
        "lease is unknown to the orchestrator; registering again",
        {{"orchestrator", options_.orchestrators[orchestrator]}, {"lease_id", request.lease_id()}});
    lease_.OnUnknown(Now());
    return;
  }
  options_.on_heartbeat(status.ok() ? "ok" : "failed");
  if (!status.ok()) {
    HandleFailure(orchestrator, "Heartbeat", status);
    return;
  }
  if (std::exchange(failing_, false)) {
    logger_.Info("heartbeats are answered again",
                 {{"orchestrator", options_.orchestrators[orchestrator]}});
  }
  lease_.OnRenewed(FromProto(response.lease_ttl()), sent);
  TakeDirectives(response, report);
}

template <typename Reply>
void Registration::TakeDirectives(const Reply& reply, const Directives::Report& report) {
  directives_->OnTold(report);
  for (const v1::Directive& directive : reply.directives()) {
    logger_.Debug("directive", {{"id", directive.id()}, {"action", ActionName(directive)}});
  }
  if (directives_->Take(reply)) lease_.OnReregister(Now());
}

void Registration::EndSuperseded(size_t orchestrator, const std::string& instance_id) {
  superseded_ = true;
  logger_.Error(
      "another instance has this worker_id; registering no more",
      {{"orchestrator", options_.orchestrators[orchestrator]}, {"other_instance_id", instance_id}});
  options_.on_superseded(instance_id);
}

void Registration::HandleFailure(size_t orchestrator, std::string_view method,
                                 const grpc::Status& status) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
  }
  lease_.OnFailed(Now());
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  const std::string error = status.error_message();
  const LogFields fields = {{"orchestrator", options_.orchestrators[orchestrator]},
                            {"method", method},
                            {"code", code},
                            {"error", error}};
  // One line says that the orchestrator is away; each retry would only repeat it.
  if (std::exchange(failing_, true)) {
    logger_.Debug("orchestrator still does not answer", fields);
  } else {
    logger_.Warning("orchestrator does not answer; serving on and trying again", fields);
  }
}

void Registration::Deregister() {
  const WorkerStatus worker = status_();
  DeregisterRequest request;
  request.set_lease_id(lease_.id());
  request.set_worker_id(worker.worker_id());
  request.set_instance_id(worker.instance_id());
  AddOutcomes(request, directives_->MakeReport());
  // stop_by_ was written before stopping_, which this thread has read under mu_.
  for (size_t tried = 0; tried < stubs_.size(); ++tried) {
    const size_t orchestrator = (lease_.NextCall(Now()).orchestrator + tried) % stubs_.size();
    const auto left = stop_by_ - Now();
    if (left <= Lease::Time::duration::zero()) return;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         left / static_cast<int>(stubs_.size() - tried));
    DeregisterResponse response;
    const grpc::Status status = stubs_[orchestrator]->Deregister(&context, request, &response);
    if (status.ok()) {
      logger_.Info("deregistered", {{"orchestrator", options_.orchestrators[orchestrator]}});
      return;
    }
    logger_.Warning("deregistering failed; the lease will run out",
                    {{"orchestrator", options_.orchestrators[orchestrator]},
                     {"error", status.error_message()}});
  }
}

grpc::Status Registration::MakeCall(size_t orchestrator, absl::Duration timeout, const Rpc& rpc) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  {
    std::lock_guard lock(mu_);
    if (stopping_) return grpc::Status::CANCELLED;
    in_flight_ = &context;
  }
  grpc::Status status = rpc(*stubs_[orchestrator], &context);
  {
    std::lock_guard lock(mu_);
    in_flight_ = nullptr;
  }
  // Where packets vanish, TCP believes in a connection for many minutes after the way is free
  // again.
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    stubs_[orchestrator] =
        NewStub(options_.orchestrators[orchestrator], options_.credentials, options_.backoff);
  }
  return status;
}

}  // namespace orcd
