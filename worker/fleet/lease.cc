#include "worker/fleet/lease.h"

#include <algorithm>
#include <utility>

namespace orcd {
namespace {

// Bounds of the TTL that an orchestrator may ask for, so that a wrong one neither floods the
// orchestrator with heartbeats nor silences the worker for good.
constexpr absl::Duration kMinTtl = absl::Milliseconds(200);
constexpr absl::Duration kMaxTtl = absl::Hours(24);
// State changes within this time share one heartbeat.
constexpr absl::Duration kMinGap = absl::Milliseconds(10);

Lease::Time::duration ToSteady(absl::Duration duration) {
  return std::chrono::duration_cast<Lease::Time::duration>(absl::ToChronoNanoseconds(duration));
}

}  // namespace

Lease::Lease(size_t orchestrators, const Backoff& backoff, uint64_t seed)
    : orchestrators_(orchestrators),
      backoff_(backoff),
      random_(static_cast<std::minstd_rand::result_type>(seed ^ (seed >> 32))) {}

Lease::Call Lease::NextCall(Time now) {
  if (!id_.empty() && now >= expires_) id_.clear();
  return {.action = id_.empty() ? Action::kRegister : Action::kHeartbeat,
          .at = due_,
          .orchestrator = current_};
}

absl::Duration Lease::Remaining(Time now) const {
  if (id_.empty() || now >= expires_) return absl::ZeroDuration();
  return absl::FromChrono(expires_ - now);
}

void Lease::OnGranted(std::string id, absl::Duration ttl, Time sent) {
  id_ = std::move(id);
  sequence_ = 0;
  granted_ = sent;
  OnRenewed(ttl, sent);
}

void Lease::OnRenewed(absl::Duration ttl, Time sent) {
  if (ttl > absl::ZeroDuration()) ttl_ = std::clamp(ttl, kMinTtl, kMaxTtl);
  failures_ = 0;
  renewed_ = sent;
  expires_ = sent + ToSteady(ttl_);
  due_ = sent + ToSteady(ttl_ / 2);
}

void Lease::OnUnknown(Time now) {
  id_.clear();
  failures_ = 0;
  due_ = now;
}

void Lease::OnReregister(Time now) {
  id_.clear();
  due_ = std::max(now, granted_ + ToSteady(backoff_.initial));
}

void Lease::OnFailed(Time now) {
  absl::Duration wait = backoff_.initial;
  for (int i = 0; i < failures_ && wait < backoff_.max; ++i) wait *= 2;
  wait = std::min(wait, backoff_.max);
  if (!id_.empty()) wait = std::min(wait, std::max(Remaining(now) / 2, backoff_.initial));
  ++failures_;
  current_ = (current_ + 1) % orchestrators_;
  due_ = now + ToSteady(wait * std::uniform_real_distribution<double>(0.5, 1.0)(random_));
}

void Lease::OnStateChanged(Time now) {
  if (failures_ != 0 || id_.empty()) return;
  due_ = std::min(due_, std::max(now, renewed_ + ToSteady(kMinGap)));
}

}  // namespace orcd
