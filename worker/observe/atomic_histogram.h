// A histogram that threads which must not wait can write to.
#ifndef ORCD_WORKER_OBSERVE_ATOMIC_HISTOGRAM_H_
#define ORCD_WORKER_OBSERVE_ATOMIC_HISTOGRAM_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "prometheus/metric_family.h"

namespace orcd {

// Counts durations in buckets, without a lock: prometheus::Histogram takes one, which a scrape
// holds. Any thread may call.
class AtomicHistogram {
 public:
  // `bounds` are the buckets' upper bounds in seconds, ascending.
  AtomicHistogram(std::string name, std::string help, std::vector<double> bounds);

  void Observe(absl::Duration took);

  // A duration that is observed meanwhile may be in the count and not yet in the sum.
  prometheus::MetricFamily Collect() const;

 private:
  const std::string name_;
  const std::string help_;
  const std::vector<double> bounds_;
  // One for each bound, and one for what is above the last.
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<int64_t> sum_ns_ = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_ATOMIC_HISTOGRAM_H_
