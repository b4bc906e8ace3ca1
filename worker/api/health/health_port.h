// Serves grpc.health.v1 on a port of its own, with threads of its own.
#ifndef ORCD_WORKER_API_HEALTH_HEALTH_PORT_H_
#define ORCD_WORKER_API_HEALTH_HEALTH_PORT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/api/health/health_service.h"
#include "worker/security/guard/connection_guard.h"

namespace orcd {

// Serves the answers of a HealthService on threads of a connection guard that nothing else uses.
// It does not use gRPC, whose servers share threads and queues, so a flood on the main port would
// delay probes here. Watchers learn of a change within 200 ms. One thread may call the public
// functions.
class HealthPort {
 public:
  struct Options {
    // host:port; port 0: any free port. Plaintext.
    std::string listen;
    // The flag that sets `listen`, for errors.
    std::string flag = "--health-listen";
  };

  // Fails with kUnavailable if it cannot listen. `health` must outlive the port.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(const Options& options,
                                                           const HealthService& health);
  // Calls Stop.
  ~HealthPort();

  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  // host:port, with the port that was bound.
  const std::string& address() const { return guard_->address(); }

  // Ends every call and the threads.
  void Stop();

 private:
  explicit HealthPort(std::unique_ptr<guard::ConnectionGuard> guard) : guard_(std::move(guard)) {}

  const std::unique_ptr<guard::ConnectionGuard> guard_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_HEALTH_HEALTH_PORT_H_
