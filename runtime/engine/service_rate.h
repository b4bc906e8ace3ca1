// How fast requests were served lately: what a caller may be promised.
#ifndef ORCD_RUNTIME_ENGINE_SERVICE_RATE_H_
#define ORCD_RUNTIME_ENGINE_SERVICE_RATE_H_

#include <optional>

#include "absl/time/time.h"

namespace orcd {

// Averages of what was measured, the last few dozen steps and departures counting most. A figure
// that was not measured for a minute is not known any more: conditions change, and who refuses on
// old figures measures no new ones. One thread (the engine's); copies may go anywhere.
class ServiceRate {
 public:
  // `max_step_tokens` is what the backend takes in one step.
  explicit ServiceRate(int max_step_tokens) : max_step_tokens_(max_step_tokens) {}

  // A step of `tokens` tokens, `drawing` of which only drew the next one, took `duration`.
  void OnStep(absl::Time now, int tokens, int drawing, absl::Duration duration);
  // A request went, and others waited for its place.
  void OnDeparture(absl::Time now);
  // Nobody waits: the time to the next departure says nothing.
  void OnNobodyWaits() { last_departure_ = absl::InfinitePast(); }

  // Tokens of prompts in a second, all requests together: those of the steps that were at least
  // half full, by the time that these took together. Of emptier steps it is not known.
  std::optional<double> PromptTokensPerSecond(absl::Time now) const;
  // From a request's token to its next.
  std::optional<absl::Duration> TokenInterval(absl::Time now) const;
  // Between places that become free while others wait for them.
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
  // Of the same steps.
  Mean prompt_tokens_;
  Mean prompt_seconds_;
  Mean token_seconds_;
  Mean departure_seconds_;
  absl::Time last_departure_ = absl::InfinitePast();
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SERVICE_RATE_H_
