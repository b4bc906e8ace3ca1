// Computes rates over the last seconds from monotonic totals.
#ifndef ORCD_WORKER_BASE_RATE_METER_H_
#define ORCD_WORKER_BASE_RATE_METER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"

namespace orcd {

// Remembers totals of the last ten seconds, at most one a second. One thread at a time may call.
class RateMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Totals {
    int64_t generated_tokens = 0;
    int64_t finished_requests = 0;
    int64_t prompt_tokens = 0;
  };
  struct Rates {
    // The time span that the rates were measured over.
    absl::Duration window;
    double generated_tokens_per_second = 0;
    double finished_requests_per_second = 0;
    double prompt_tokens_per_second = 0;
  };

  // Returns the rates up to `now`, given the `totals` at that time; nullopt until there is a second
  // to measure over. If nobody asked for a while, the window is as long as that while.
  std::optional<Rates> Measure(Time now, const Totals& totals);

 private:
  struct Sample {
    Time at;
    Totals totals;
  };
  // Oldest first.
  std::deque<Sample> samples_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_RATE_METER_H_
