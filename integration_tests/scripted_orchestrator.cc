#include "integration_tests/scripted_orchestrator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace orcd::testing {
namespace {

template <typename Map>
typename Map::mapped_type Find(const Map& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? typename Map::mapped_type() : found->second;
}

}  // namespace

grpc::Status ScriptedOrchestrator::Register(grpc::ServerContext* context,
                                            const v1::RegisterRequest* request,
                                            v1::RegisterResponse* response) {
  std::unique_lock lock(mutex_);
  registrations_.push_back(*request);
  Keep(request->outcomes());
  if (!Delay(context, lock)) return grpc::Status::CANCELLED;
  if (refuse_registrations_) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now");
  const std::string& worker = request->status().worker_id();
  const std::string& instance = request->status().instance_id();
  if (superseded_.contains(instance)) return Superseded(worker);
  std::string& holder = holders_[worker];
  if (!holder.empty() && holder != instance) superseded_.insert(holder);
  holder = instance;
  statuses_[worker] = request->status();
  addresses_[worker] = request->address();
  last_lease_ = absl::StrCat("lease-", ++granted_);
  leases_[last_lease_] = {worker, instance};
  response->set_lease_id(last_lease_);
  *response->mutable_lease_ttl() = TtlLocked();
  for (const v1::Directive& directive : directives_[worker]) {
    *response->add_directives() = directive;
  }
  return grpc::Status::OK;
}

grpc::Status ScriptedOrchestrator::Heartbeat(grpc::ServerContext* context,
                                             const v1::HeartbeatRequest* request,
                                             v1::HeartbeatResponse* response) {
  std::unique_lock lock(mutex_);
  heartbeats_.push_back(*request);
  Keep(request->outcomes());
  if (!Delay(context, lock)) return grpc::Status::CANCELLED;
  const auto lease = leases_.find(request->lease_id());
  if (lease == leases_.end()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such lease");
  const auto& [worker, instance] = lease->second;
  if (superseded_.contains(instance)) return Superseded(worker);
  statuses_[worker] = request->status();
  *response->mutable_lease_ttl() = TtlLocked();
  for (const v1::Directive& directive : directives_[worker]) {
    *response->add_directives() = directive;
  }
  return grpc::Status::OK;
}

grpc::Status ScriptedOrchestrator::Deregister(grpc::ServerContext*,
                                              const v1::DeregisterRequest* request,
                                              v1::DeregisterResponse*) {
  std::lock_guard lock(mutex_);
  deregistrations_.push_back(*request);
  Keep(request->outcomes());
  leases_.erase(request->lease_id());
  return grpc::Status::OK;
}

bool ScriptedOrchestrator::Delay(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock) {
  const absl::Time until = absl::Now() + delay_;
  while (absl::Now() < until) {
    lock.unlock();
    absl::SleepFor(absl::Milliseconds(5));
    lock.lock();
    if (context->IsCancelled()) {
      ++abandoned_;
      return false;
    }
  }
  return true;
}

void ScriptedOrchestrator::Keep(
    const google::protobuf::RepeatedPtrField<v1::DirectiveOutcome>& outcomes) {
  for (const v1::DirectiveOutcome& outcome : outcomes) {
    v1::DirectiveOutcome& kept = outcomes_[outcome.id()];
    // Calls may arrive out of order, so a final outcome is never replaced by a running one.
    const bool ended = kept.state() >= v1::DirectiveOutcome::STATE_SUCCEEDED;
    if (!ended || outcome.state() >= v1::DirectiveOutcome::STATE_SUCCEEDED) kept = outcome;
  }
}

google::protobuf::Duration ScriptedOrchestrator::TtlLocked() const {
  google::protobuf::Duration ttl;
  ttl.set_seconds(absl::ToInt64Seconds(lease_ttl_));
  ttl.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(lease_ttl_ - absl::Seconds(ttl.seconds()))));
  return ttl;
}

grpc::Status ScriptedOrchestrator::Superseded(const std::string& worker_id) const {
  google::rpc::ErrorInfo info;
  info.set_domain("orcd");
  info.set_reason("SUPERSEDED");
  (*info.mutable_metadata())["instance_id"] = Find(holders_, worker_id);
  google::rpc::Status status;
  status.set_code(static_cast<int>(grpc::StatusCode::ABORTED));
  status.add_details()->PackFrom(info);
  return grpc::Status(grpc::StatusCode::ABORTED, "another instance has this worker_id",
                      status.SerializeAsString());
}

void ScriptedOrchestrator::ForgetLeases() {
  std::lock_guard lock(mutex_);
  leases_.clear();
  holders_.clear();
  superseded_.clear();
}

void ScriptedOrchestrator::RefuseRegistrations(bool refuse) {
  std::lock_guard lock(mutex_);
  refuse_registrations_ = refuse;
}

void ScriptedOrchestrator::ReplyAfter(absl::Duration delay) {
  std::lock_guard lock(mutex_);
  delay_ = delay;
}

void ScriptedOrchestrator::SetDirectives(const std::string& worker_id,
                                         std::vector<v1::Directive> directives) {
  std::lock_guard lock(mutex_);
  directives_[worker_id] = std::move(directives);
}

void ScriptedOrchestrator::SetTtl(absl::Duration ttl) {
  std::lock_guard lock(mutex_);
  lease_ttl_ = ttl;
}

std::vector<v1::RegisterRequest> ScriptedOrchestrator::registrations() const {
  std::lock_guard lock(mutex_);
  return registrations_;
}

std::vector<v1::HeartbeatRequest> ScriptedOrchestrator::heartbeats() const {
  std::lock_guard lock(mutex_);
  return heartbeats_;
}

std::vector<v1::DeregisterRequest> ScriptedOrchestrator::deregistrations() const {
  std::lock_guard lock(mutex_);
  return deregistrations_;
}

std::string ScriptedOrchestrator::lease_id() const {
  std::lock_guard lock(mutex_);
  return last_lease_;
}

v1::DirectiveOutcome ScriptedOrchestrator::outcome(const std::string& directive_id) const {
  std::lock_guard lock(mutex_);
  return Find(outcomes_, directive_id);
}

v1::WorkerStatus ScriptedOrchestrator::status(const std::string& worker_id) const {
  std::lock_guard lock(mutex_);
  return Find(statuses_, worker_id);
}

std::string ScriptedOrchestrator::address(const std::string& worker_id) const {
  std::lock_guard lock(mutex_);
  return Find(addresses_, worker_id);
}

int ScriptedOrchestrator::abandoned() const {
  std::lock_guard lock(mutex_);
  return abandoned_;
}

OrchestratorServer::OrchestratorServer(v1::Orchestrator::Service& service, int port,
                                       std::shared_ptr<grpc::ServerCredentials> credentials,
                                       const std::string& host)
    : port_(port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat(host, ":", port), credentials, &port_);
  builder.RegisterService(&service);
  server_ = builder.BuildAndStart();
}

OrchestratorServer::~OrchestratorServer() {
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
}

std::string OrchestratorServer::address() const { return absl::StrCat("127.0.0.1:", port_); }

}  // namespace orcd::testing
