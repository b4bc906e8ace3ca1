#include "runtime/engine/service_rate.h"

#include <algorithm>

namespace orcd {
namespace {

constexpr double kWeight = 1.0 / 16;
constexpr absl::Duration kKnownFor = absl::Minutes(1);
constexpr int kMinSteps = 4;
constexpr int kMinDepartures = 8;

}  // namespace

void ServiceRate::Mean::Add(absl::Time now, double sample) {
  if (now - last > kKnownFor) count = 0;
  ++count;
  // The first samples get the plain mean.
  value += (sample - value) * std::max(kWeight, 1.0 / count);
  last = now;
}

std::optional<double> ServiceRate::Mean::Get(absl::Time now, int min_count) const {
  if (count < min_count || now - last > kKnownFor) return std::nullopt;
  return value;
}

void ServiceRate::OnStep(absl::Time now, int tokens, int drawing, absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds <= 0) return;
  if (tokens == drawing) {
    token_seconds_.Add(now, seconds);
    return;
  }
  // The duration of a mostly empty step does not show how fast prompts are computed. Tokens and
  // time are averaged separately: the mean of the rates of single steps would weigh a quick step as
  // much as a slow one, which takes more of the time.
  if (tokens * 2 < max_step_tokens_) return;
  prompt_tokens_.Add(now, tokens - drawing);
  prompt_seconds_.Add(now, seconds);
}

void ServiceRate::OnDeparture(absl::Time now) {
  if (last_departure_ != absl::InfinitePast()) {
    departure_seconds_.Add(now, absl::ToDoubleSeconds(now - last_departure_));
  }
  last_departure_ = now;
}

std::optional<double> ServiceRate::PromptTokensPerSecond(absl::Time now) const {
  const std::optional<double> tokens = prompt_tokens_.Get(now, kMinSteps);
  const std::optional<double> seconds = prompt_seconds_.Get(now, kMinSteps);
  if (!tokens || !seconds) return std::nullopt;
  return *tokens / *seconds;
}

std::optional<absl::Duration> ServiceRate::TokenInterval(absl::Time now) const {
  const std::optional<double> seconds = token_seconds_.Get(now, kMinSteps);
  if (!seconds) return std::nullopt;
  return absl::Seconds(*seconds);
}

std::optional<absl::Duration> ServiceRate::DepartureInterval(absl::Time now) const {
  const std::optional<double> seconds = departure_seconds_.Get(now, kMinDepartures);
  if (!seconds) return std::nullopt;
  return absl::Seconds(*seconds);
}

}  // namespace orcd
