#include "worker/metrics_endpoint.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/error.h"

namespace orcd {
namespace {

class StatusGauges final : public prometheus::Collectable {
 public:
  explicit StatusGauges(std::function<v1::WorkerStatus()> status) : status_(std::move(status)) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    return StatusMetrics(status_());
  }

 private:
  const std::function<v1::WorkerStatus()> status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& listen, const Metrics& metrics, std::function<v1::WorkerStatus()> status) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint);
  endpoint->gauges_ = std::make_shared<StatusGauges>(std::move(status));
  // The library throws, and says no more than that it could not.
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(listen);
    endpoint->exposer_->RegisterCollectable(endpoint->gauges_);
    endpoint->exposer_->RegisterCollectable(metrics.registry());
  } catch (const std::exception&) {
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat("cannot listen on ", listen,
                                  ": the address is not this machine's or the port is taken; "
                                  "change --metrics-listen"),
                     {.reason = "CANNOT_LISTEN", .subject = listen});
  }
  const std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
  const std::string host = listen.substr(0, listen.rfind(':'));
  endpoint->address_ = absl::StrCat(host, ":", ports.empty() ? 0 : ports.front());
  return endpoint;
}

}  // namespace orcd
