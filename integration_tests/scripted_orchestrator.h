// A server of orcd.v1.Orchestrator that does what a test says. Test equipment only.
#ifndef ORCD_INTEGRATION_TESTS_SCRIPTED_ORCHESTRATOR_H_
#define ORCD_INTEGRATION_TESTS_SCRIPTED_ORCHESTRATOR_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "orcd/v1/orchestrator.grpc.pb.h"

namespace orcd::testing {

// Unless told otherwise, keeps the workers' messages, grants leases, and moves a worker_id to the
// newest instance. Any thread may call.
class ScriptedOrchestrator final : public v1::Orchestrator::Service {
 public:
  explicit ScriptedOrchestrator(absl::Duration lease_ttl) : lease_ttl_(lease_ttl) {}

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override;
  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override;
  grpc::Status Deregister(grpc::ServerContext* context, const v1::DeregisterRequest* request,
                          v1::DeregisterResponse* response) override;

  // Makes every lease granted so far unknown and forgets which instances were superseded, as an
  // orchestrator restarted without its state does.
  void ForgetLeases();
  void RefuseRegistrations(bool refuse);
  // Delays each reply by `delay`, or until the caller goes away.
  void ReplyAfter(absl::Duration delay);
  // Sets the directives of every reply to the worker, until the next call.
  void SetDirectives(const std::string& worker_id, std::vector<v1::Directive> directives);
  // Grants leases of this length from now on; any value is allowed.
  void SetTtl(absl::Duration ttl);

  std::vector<v1::RegisterRequest> registrations() const;
  std::vector<v1::HeartbeatRequest> heartbeats() const;
  std::vector<v1::DeregisterRequest> deregistrations() const;
  // The id granted by the last registration.
  std::string lease_id() const;
  // The last reported outcome of a directive; STATE_UNSPECIFIED if none was reported.
  v1::DirectiveOutcome outcome(const std::string& directive_id) const;
  // The last status under a worker_id, and the address it registered with.
  v1::WorkerStatus status(const std::string& worker_id) const;
  std::string address(const std::string& worker_id) const;
  // Number of replies that the caller did not wait for.
  int abandoned() const;

 private:
  struct Lease {
    std::string worker_id;
    std::string instance_id;
  };

  // `lock` holds mutex_ and releases it during the wait. False if the caller went away.
  bool Delay(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock);
  void Keep(const google::protobuf::RepeatedPtrField<v1::DirectiveOutcome>& outcomes);
  google::protobuf::Duration TtlLocked() const;
  grpc::Status Superseded(const std::string& worker_id) const;

  // Guards the members below.
  mutable std::mutex mutex_;
  absl::Duration lease_ttl_;
  absl::Duration delay_ = absl::ZeroDuration();
  bool refuse_registrations_ = false;
  std::map<std::string, Lease> leases_;
  // Number of leases granted so far.
  int granted_ = 0;
  std::string last_lease_;
  // worker_id → instance_id.
  std::map<std::string, std::string> holders_;
  std::set<std::string> superseded_;
  std::map<std::string, std::vector<v1::Directive>> directives_;
  std::map<std::string, v1::DirectiveOutcome> outcomes_;
  std::map<std::string, v1::WorkerStatus> statuses_;
  std::map<std::string, std::string> addresses_;
  std::vector<v1::RegisterRequest> registrations_;
  std::vector<v1::HeartbeatRequest> heartbeats_;
  std::vector<v1::DeregisterRequest> deregistrations_;
  int abandoned_ = 0;
};

// A server around an orchestrator, which can go away and come back at the same address.
class OrchestratorServer {
 public:
  explicit OrchestratorServer(
      v1::Orchestrator::Service& service, int port = 0,
      std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials(),
      const std::string& host = "127.0.0.1");
  ~OrchestratorServer();

  bool listens() const { return server_ != nullptr && port_ != 0; }
  int port() const { return port_; }
  std::string address() const;

 private:
  int port_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_SCRIPTED_ORCHESTRATOR_H_
