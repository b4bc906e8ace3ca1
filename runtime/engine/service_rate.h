// Measures how fast requests were served lately, to estimate when a request can be served.
#ifndef ORCD_RUNTIME_ENGINE_SERVICE_RATE_H_
#define ORCD_RUNTIME_ENGINE_SERVICE_RATE_H_

#include <optional>

#include "absl/time/time.h"

namespace orcd {

// Moving averages, dominated by the last few dozen steps and departures. A figure that was not
// measured for a minute is unknown: conditions change, and a worker that refuses requests on old
// figures would never measure new ones. One thread (the engine's); copies may be used anywhere.
class ServiceRate {
 public:
  // `max_step_tokens` is the largest number of tokens the backend takes in one step.
  explicit ServiceRate(int max_step_tokens) : max_step_tokens_(max_step_tokens) {}

  // Records a step of `tokens` tokens that took `duration`; `drawing` of them only drew the next
  // token.
  void OnStep(absl::Time now, int tokens, int drawing, absl::Duration duration);
  // Records that a request went while others waited for its place.
  void OnDeparture(absl::Time now);
  // Nobody waits, so the time to the next departure means nothing.
  void OnQueueEmpty() { last_departure_ = absl::InfinitePast(); }

  // Prompt tokens per second, all requests together: the prompt tokens of the steps that were at
  // least half full, divided by the total time of these steps. Unknown without such steps.
  std::optional<double> PromptTokensPerSecond(absl::Time now) const;
  // Time from one token of a request to its next.
  std::optional<absl::Duration> TokenInterval(absl::Time now) const;
  // Time between places that become free while others wait for them.
  std::optional<absl::Duration> DepartureInterval(absl::Time now) const;

 private:
  // An exponentially weighted mean.
  struct Mean {
    double value = 0;
    int count = 0;
    absl::Time last = absl::InfinitePast();

    void Add(absl::Time now, double sample);
    std::optional<double> Get(absl::Time now, int min_count) const;
  };

  int max_step_tokens_;
  // Both are averaged over the same steps.
  Mean prompt_tokens_;
  Mean prompt_seconds_;
  Mean token_seconds_;
  Mean departure_seconds_;
  absl::Time last_departure_ = absl::InfinitePast();
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SERVICE_RATE_H_
