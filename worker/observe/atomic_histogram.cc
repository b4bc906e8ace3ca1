#include "worker/observe/atomic_histogram.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace orcd {

AtomicHistogram::AtomicHistogram(std::string name, std::string help, std::vector<double> bounds)
    : name_(std::move(name)),
      help_(std::move(help)),
      bounds_(std::move(bounds)),
      counts_(bounds_.size() + 1) {}

void AtomicHistogram::Observe(absl::Duration took) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), absl::ToDoubleSeconds(took));
  counts_[static_cast<size_t>(bucket - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(absl::ToInt64Nanoseconds(took), std::memory_order_relaxed);
}

prometheus::MetricFamily AtomicHistogram::Collect() const {
  prometheus::ClientMetric metric;
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    const double bound = i < bounds_.size() ? bounds_[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({.cumulative_count = total, .upper_bound = bound});
  }
  metric.histogram.sample_count = total;
  metric.histogram.sample_sum = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e9;
  prometheus::MetricFamily family;
  family.name = name_;
  family.help = help_;
  family.type = prometheus::MetricType::Histogram;
  family.metric.push_back(std::move(metric));
  return family;
}

}  // namespace orcd
