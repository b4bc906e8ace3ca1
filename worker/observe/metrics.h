// The worker's counters and measurements, for Prometheus.
#ifndef ORCD_WORKER_OBSERVE_METRICS_H_
#define ORCD_WORKER_OBSERVE_METRICS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "runtime/engine/request.h"
#include "worker/observe/constraint_times.h"

namespace orcd {

// Owns the counters and histograms. Any thread but the engine thread may call: a call takes a lock,
// which a scrape holds while it copies buckets.
class Metrics {
 public:
  Metrics();

  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // A Generate call was refused before its request was queued. `reason` is one of docs/errors.md.
  void OnRequestRefused(absl::StatusCode code, const std::string& reason);
  // `since_arrival` is the time since the request arrived.
  void OnFirstToken(absl::Duration since_arrival);
  // `tokens` came `gap` after the ones before, or are the first.
  void OnTokens(int tokens, absl::Duration gap, bool first);
  // A queued request has ended; `code` is the status of its call. `hidden_tokens` of its generated
  // tokens were in no OnTokens, such as the one that ended it.
  void OnRequestEnded(const FinishedEvent& event, absl::StatusCode code,
                      std::string_view finish_reason, absl::Duration since_arrival,
                      int hidden_tokens);
  // `after` is the time from the request to end a generation until its slot and blocks were free.
  void OnReleased(absl::Duration after);
  void OnLoadEnded(const absl::Status& status, absl::Duration took);
  void OnHeartbeat(std::string_view result);
  void OnFault(const std::string& kind);
  void OnSpans(std::string_view result, size_t count);
  // The transport refused or ended `what`, a call or a connection, before gRPC saw it.
  void OnTransportRefused(std::string_view what, std::string_view reason);
  // The certificates of `file`, such as `tls-cert`, came into use; they are valid from `begin` to
  // `end`.
  void OnCertificate(std::string_view file, absl::Time begin, absl::Time end);

  // The engine thread too may call what this returns, which takes no lock.
  const std::shared_ptr<ConstraintTimes>& constraint_times() const { return constraint_times_; }

  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }
  // Returns everything in the registry, and the times of constraints.
  std::vector<prometheus::MetricFamily> Collect() const;

 private:
  using Counters = prometheus::Family<prometheus::Counter>;
  using Gauges = prometheus::Family<prometheus::Gauge>;
  using Histogram = prometheus::Histogram;

  const std::shared_ptr<prometheus::Registry> registry_;
  const std::shared_ptr<ConstraintTimes> constraint_times_ = std::make_shared<ConstraintTimes>();
  Counters& requests_;
  Counters& rejections_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& cached_prompt_tokens_;
  prometheus::Counter& generated_tokens_;
  Counters& failed_constraints_;
  Counters& gpu_faults_;
  Counters& heartbeats_;
  Counters& loads_;
  Counters& spans_;
  Counters& transport_refusals_;
  Gauges& certificate_begin_;
  Gauges& certificate_end_;
  Histogram& time_to_first_token_;
  Histogram& inter_token_latency_;
  Histogram& request_queue_;
  Histogram& request_prefill_;
  Histogram& request_decode_;
  Histogram& request_e2e_;
  Histogram& model_load_;
  Histogram& cancel_to_release_;
};

// Returns the gauges and totals that show a worker's status.
std::vector<prometheus::MetricFamily> StatusMetrics(const v1::WorkerStatus& status);

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_METRICS_H_
