// Serves the worker's metrics over HTTP, for Prometheus to scrape.
#ifndef ORCD_WORKER_OBSERVE_METRICS_ENDPOINT_H_
#define ORCD_WORKER_OBSERVE_METRICS_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"
#include "worker/observe/metrics.h"

namespace orcd {

// Owns the HTTP servers, one for each address that the name to listen on stands for, and their
// threads. One thread may call.
//
// A client takes at most kConnectionBytes and one connection, which ends after kIdleSeconds without
// a byte. If an address has more than kMaxConnections, its oldest connection is closed, so that
// a client that holds connections keeps no other client out.
class MetricsEndpoint {
 public:
  static constexpr unsigned int kMaxConnections = 128;
  static constexpr unsigned int kIdleSeconds = 10;
  // Limit for a connection's request and the headers of the answer.
  static constexpr size_t kConnectionBytes = 16 << 10;

  // Serves GET and HEAD of /metrics at `listen` (host:port; port 0: any free port; an IPv6 address
  // in brackets) once it returns. Fails with kUnavailable (CANNOT_LISTEN) if it cannot listen.
  // `status` is called for each scrape, from the servers' threads, and must not block; `status` and
  // `metrics` must outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& listen, const Metrics& metrics, std::function<v1::WorkerStatus()> status);
  ~MetricsEndpoint();

  // host:port, with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  class HttpServer;

  MetricsEndpoint();

  std::vector<std::unique_ptr<HttpServer>> servers_;
  std::string address_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_METRICS_ENDPOINT_H_
