// grpc.health.v1, the service that Kubernetes probes and gRPC clients query before they send work.
// https://github.com/grpc/grpc/blob/master/doc/health-checking.md
#ifndef ORCD_WORKER_API_HEALTH_HEALTH_SERVICE_H_
#define ORCD_WORKER_API_HEALTH_HEALTH_SERVICE_H_

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace orcd {

// Owns the serving state of each name that probes may ask for, and the open Watch calls. Check
// answers NOT_FOUND for a name that is not set; Watch answers SERVICE_UNKNOWN and stays open until
// the name appears. Watchers get the state at once and at each change; if changes come faster than
// a watcher reads, it gets the latest state only. Any thread may call any method, and none waits
// for a client. Must outlive the server it is registered with.
class HealthService final : public grpc::health::v1::Health::WithCallbackMethod_Check<
                                grpc::health::v1::Health::WithRawCallbackMethod_Watch<
                                    grpc::health::v1::Health::Service>> {
 public:
  using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;

  HealthService() = default;
  HealthService(const HealthService&) = delete;
  HealthService& operator=(const HealthService&) = delete;

  // Adds `service` or changes it. "" is the server as a whole.
  void Set(const std::string& service, bool serving);

  // Makes `service` unknown again. Its watchers get SERVICE_UNKNOWN and stay connected.
  void Remove(const std::string& service);

  // Ends every open Watch, and each later one at once, with UNAVAILABLE, so that the server can
  // stop. Check continues to answer.
  void Shutdown();

  // Returns the state that Check answers with; SERVICE_UNKNOWN for a name that is not set.
  ServingStatus Status(const std::string& service) const;
  bool is_shut_down() const;

  // UnknownService is the status of a Check for a name that is not set; ShuttingDown is that of a
  // Watch after Shutdown.
  static grpc::Status UnknownService();
  static grpc::Status ShuttingDown();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  class Watcher;

  // Applies `change` under the mutex and notifies each affected watcher.
  template <typename Change>
  void UpdateWatchers(const Change& change);

  ServingStatus StatusLocked(const std::string& service) const;

  mutable std::mutex mu_;
  // Guarded by mu_.
  std::map<std::string, bool> serving_;
  std::set<std::shared_ptr<Watcher>> watchers_;
  bool shut_down_ = false;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_HEALTH_HEALTH_SERVICE_H_
