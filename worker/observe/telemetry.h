// Metrics and spans of the worker's calls and loads.
#ifndef ORCD_WORKER_OBSERVE_TELEMETRY_H_
#define ORCD_WORKER_OBSERVE_TELEMETRY_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/observe/metrics.h"
#include "worker/observe/request_observer.h"
#include "worker/observe/span_exporter.h"
#include "worker/observe/trace_context.h"

namespace orcd {

// Any thread may call; no function waits. Must outlive the observers it makes.
class Telemetry {
 public:
  // If `exporter` is null there are no spans. `metrics` and `exporter` must outlive this.
  Telemetry(Metrics& metrics, SpanExporter* exporter, double sample_ratio)
      : metrics_(metrics), exporter_(exporter), sample_ratio_(sample_ratio) {}

  Metrics& metrics() { return metrics_; }

  // Returns the trace that a call belongs to.
  TraceContext ContextOf(const grpc::ServerContextBase& context) const {
    return TraceContextOf(context, sample_ratio_);
  }

  // Returns the observer of a request that arrived at `arrival` on the SteadyNow clock.
  std::shared_ptr<RequestObserver> ObserveRequest(const TraceContext& trace,
                                                  const std::string& request_id,
                                                  const std::string& model_id, absl::Time arrival);

  // Starts to time the release of a request; call when somebody asks to end it. The returned
  // function must be called once its slot and blocks are free; `found` says whether there was such
  // a request. `telemetry` may be null.
  static std::function<void(bool found)> TimeRelease(Telemetry* telemetry);

  // Records the end of a load, which a call of this trace began at `begun` on the SteadyNow clock.
  void OnLoadEnded(const TraceContext& trace, const std::string& model, absl::Time begun,
                   const absl::Status& status);

 private:
  class Request;

  Metrics& metrics_;
  SpanExporter* const exporter_;
  const double sample_ratio_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_TELEMETRY_H_
