// Serves the worker's metrics over HTTP, for Prometheus to scrape.
#ifndef ORCD_WORKER_METRICS_ENDPOINT_H_
#define ORCD_WORKER_METRICS_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "worker/metrics.h"

namespace orcd {

// Owns the HTTP server and its two threads. One thread.
class MetricsEndpoint {
 public:
  // Serves GET /metrics at `listen` (host:port; port 0: any that is free) when it returns.
  // kUnavailable where it cannot listen. `status` is called for each scrape, from the server's
  // threads, and must not block; it and `metrics` must outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& listen, const Metrics& metrics, std::function<v1::WorkerStatus()> status);

  // host:port, the port as it was bound.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint() = default;

  // The server knows it by a weak pointer.
  std::shared_ptr<prometheus::Collectable> gauges_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_METRICS_ENDPOINT_H_
