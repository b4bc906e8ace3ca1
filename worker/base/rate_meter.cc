#include "worker/base/rate_meter.h"

namespace orcd {
namespace {

constexpr std::chrono::seconds kWindow(10);
constexpr std::chrono::seconds kSpacing(1);

}  // namespace

std::optional<RateMeter::Rates> RateMeter::Measure(Time now, const Totals& totals) {
  if (samples_.empty() || now - samples_.back().at >= kSpacing) samples_.push_back({now, totals});
  while (samples_.size() > 1 && now - samples_[1].at >= kWindow) samples_.pop_front();

  const Sample& since = samples_.front();
  if (now - since.at < kSpacing) return std::nullopt;
  Rates rates;
  rates.window = absl::FromChrono(now - since.at);
  const auto per_second = [&](int64_t now_total, int64_t then_total) {
    return static_cast<double>(now_total - then_total) / absl::ToDoubleSeconds(rates.window);
  };
  rates.generated_tokens_per_second =
      per_second(totals.generated_tokens, since.totals.generated_tokens);
  rates.finished_requests_per_second =
      per_second(totals.finished_requests, since.totals.finished_requests);
  rates.prompt_tokens_per_second = per_second(totals.prompt_tokens, since.totals.prompt_tokens);
  return rates;
}

}  // namespace orcd
