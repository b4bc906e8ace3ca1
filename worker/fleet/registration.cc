#include "worker/fleet/registration.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {
namespace {

using orcd::v1::WorkerStatus;

constexpr absl::Duration kMinRpcTimeout = absl::Milliseconds(100);
// Timeout of calls to an orchestrator that the worker has left for another.
constexpr absl::Duration kDeregisterTimeout = absl::Seconds(1);

Lease::Time Now() { return std::chrono::steady_clock::now(); }

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::string_view ActionName(const v1::Directive& directive) {
  const auto* field = directive.GetDescriptor()->FindFieldByNumber(directive.action_case());
  return field == nullptr ? std::string_view("none") : std::string_view(field->name());
}

}  // namespace

Registration::Registration(Options options, std::function<WorkerStatus()> status,
                           const Logger* logger)
    : options_(std::move(options)),
      status_(std::move(status)),
      logger_(*logger),
      directives_(Directives::Create(options_.directives, [this] { NotifyStateChanged(); })),
      lease_(options_.orchestrators.size(), options_.backoff, RandomSeed()) {}

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
  }
  cancel_.Cancel();
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  directives_->Close();
}

void Registration::Run() {
  Lease::Call call;
  while (WaitForCall(&call)) {
    OrchestratorLink& orchestrator = *options_.orchestrators[call.orchestrator];
    switch (call.action) {
      case Lease::Action::kRegister:
        Register(orchestrator);
        break;
      case Lease::Action::kHeartbeat:
        Heartbeat(orchestrator);
        break;
    }
  }
  // The entry under the worker_id of a superseded worker belongs to the other instance.
  if (!superseded_) Deregister();
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

void Registration::Register(OrchestratorLink& orchestrator) {
  const Directives::Report report = directives_->MakeReport();
  const Lease::Time sent = Now();
  const absl::StatusOr<LinkReply> reply =
      orchestrator.Register(MakeReport(report), options_.rpc_timeout, cancel_);
  if (!reply.ok()) {
    options_.on_heartbeat("unregistered");
    HandleFailure(orchestrator, "Register", reply.status());
    return;
  }
  if (!reply->superseded_by.empty()) {
    EndSuperseded(orchestrator, reply->superseded_by);
    return;
  }
  failing_ = false;
  lease_.OnGranted(reply->lease_id, reply->ttl, sent);
  entered_ = reply->entered;
  if (entered_) {
    logger_.Info("registered", {{"orchestrator", orchestrator.address()},
                                {"lease_id", lease_.id()},
                                {"lease_ttl", absl::FormatDuration(reply->ttl)}});
  } else {
    logger_.Info("the orchestrator answers; registering once the worker is ready",
                 {{"orchestrator", orchestrator.address()}});
  }
  LogReply(orchestrator, *reply);
  TakeDirectives(*reply, report);
}

void Registration::Heartbeat(OrchestratorLink& orchestrator) {
  const Directives::Report report = directives_->MakeReport();
  const std::string lease_id = lease_.id();
  const Lease::Time sent = Now();
  // Half of the time left allows a try with another orchestrator while the lease holds.
  const absl::Duration timeout =
      std::min(options_.rpc_timeout, std::max(lease_.Remaining(sent) / 2, kMinRpcTimeout));
  const LinkReport status_report = MakeReport(report);
  const absl::StatusOr<LinkReply> reply =
      orchestrator.Heartbeat(lease_id, lease_.TakeSequence(), status_report, timeout, cancel_);
  if (reply.ok() && !reply->superseded_by.empty()) {
    options_.on_heartbeat("superseded");
    EndSuperseded(orchestrator, reply->superseded_by);
    return;
  }
  if (absl::IsNotFound(reply.status())) {
    options_.on_heartbeat("unknown_lease");
    logger_.Info("lease is unknown to the orchestrator; registering again",
                 {{"orchestrator", orchestrator.address()},
                  {"lease_id", lease_id},
                  {"error", std::string(reply.status().message())}});
    lease_.OnUnknown(Now());
    return;
  }
  options_.on_heartbeat(reply.ok() ? "ok" : "failed");
  if (!reply.ok()) {
    HandleFailure(orchestrator, "Heartbeat", reply.status());
    return;
  }
  if (std::exchange(failing_, false)) {
    logger_.Info("heartbeats are answered again", {{"orchestrator", orchestrator.address()}});
  }
  lease_.OnRenewed(reply->ttl, sent);
  if (std::exchange(entered_, reply->entered) != reply->entered) {
    logger_.Info(
        entered_ ? "registered: the worker is ready" : "deregistered: the worker is not ready",
        {{"orchestrator", orchestrator.address()}});
  }
  if (!entered_) DeregisterElsewhere(orchestrator, status_report);
  LogReply(orchestrator, *reply);
  TakeDirectives(*reply, report);
}

void Registration::DeregisterElsewhere(const OrchestratorLink& current, const LinkReport& report) {
  for (const std::unique_ptr<OrchestratorLink>& link : options_.orchestrators) {
    if (link.get() == &current || link->shares_leases() || !link->maybe_entered()) continue;
    const absl::Status status = link->Deregister({}, report, kDeregisterTimeout, cancel_);
    if (status.ok()) logger_.Info("deregistered", {{"orchestrator", link->address()}});
  }
}

LinkReport Registration::MakeReport(const Directives::Report& directives) const {
  return {.status = status_(), .outcomes = directives.outcomes};
}

void Registration::TakeDirectives(const LinkReply& reply, const Directives::Report& report) {
  directives_->OnReported(report);
  for (const v1::Directive& directive : reply.directives) {
    logger_.Debug("directive", {{"id", directive.id()}, {"action", ActionName(directive)}});
  }
  if (directives_->Take(reply.directives)) lease_.OnReregister(Now());
}

void Registration::LogReply(const OrchestratorLink& orchestrator, const LinkReply& reply) {
  if (std::exchange(problem_, reply.problem) == reply.problem) return;
  if (problem_.empty()) {
    logger_.Info("the orchestrator sends requests", {{"orchestrator", orchestrator.address()}});
  } else {
    logger_.Warning("the orchestrator sends no requests",
                    {{"orchestrator", orchestrator.address()}, {"error", problem_}});
  }
}

void Registration::EndSuperseded(const OrchestratorLink& orchestrator,
                                 const std::string& instance_id) {
  superseded_ = true;
  logger_.Error("another instance has this worker_id; registering no more",
                {{"orchestrator", orchestrator.address()}, {"other_instance_id", instance_id}});
  options_.on_superseded(instance_id);
  // An orchestrator that lists workers by their addresses still lists this one, and not the other
  // instance.
  DeregisterElsewhere(orchestrator, MakeReport(directives_->MakeReport()));
}

void Registration::HandleFailure(const OrchestratorLink& orchestrator, std::string_view method,
                                 const absl::Status& status) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
  }
  lease_.OnFailed(Now());
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string error(status.message());
  const LogFields fields = {{"orchestrator", orchestrator.address()},
                            {"method", method},
                            {"code", code},
                            {"error", error}};
  // One line says that the orchestrator is away; each retry would only repeat it.
  if (std::exchange(failing_, true)) {
    logger_.Debug("orchestrator still does not answer", fields);
  } else {
    logger_.Warning("orchestrator does not answer; the worker serves on and retries", fields);
  }
}

void Registration::Deregister() {
  std::vector<OrchestratorLink*> left;
  const size_t first = lease_.NextCall(Now()).orchestrator;
  const bool leased =
      std::any_of(options_.orchestrators.begin(), options_.orchestrators.end(),
                  [](const auto& link) { return link->shares_leases() && link->maybe_entered(); });
  for (size_t i = 0; i < options_.orchestrators.size(); ++i) {
    OrchestratorLink& link = *options_.orchestrators[(first + i) % options_.orchestrators.size()];
    if (link.shares_leases() ? leased : link.maybe_entered()) left.push_back(&link);
  }
  const LinkReport report = MakeReport(directives_->MakeReport());
  CallCancellation none;
  bool given_back = false;
  while (!left.empty()) {
    OrchestratorLink& link = *left.front();
    // stop_by_ was written before stopping_, which this thread has read under mu_.
    const absl::Duration grace = absl::FromChrono(stop_by_ - Now());
    if (grace <= absl::ZeroDuration()) return;
    const absl::Duration timeout = grace / static_cast<int64_t>(left.size());
    left.erase(left.begin());
    if (given_back && link.shares_leases()) continue;
    const absl::Status status = link.Deregister(lease_.id(), report, timeout, none);
    if (status.ok()) {
      given_back = given_back || link.shares_leases();
      logger_.Info("deregistered", {{"orchestrator", link.address()}});
    } else {
      logger_.Warning(link.shares_leases() ? "deregistering failed; the lease will run out"
                                           : "deregistering failed",
                      {{"orchestrator", link.address()}, {"error", std::string(status.message())}});
    }
  }
}

}  // namespace orcd
