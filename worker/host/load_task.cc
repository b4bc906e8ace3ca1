#include "worker/host/load_task.h"

#include <algorithm>

#include "worker/base/to_proto.h"

namespace orcd {

void LoadTask::OnProgress(LoadStage stage, uint64_t done, uint64_t total) {
  const absl::Time now = SteadyNow();
  std::lock_guard lock(mutex_);
  // Reports of several threads overtake each other; the visible progress never goes back.
  if (stage < stage_) return;
  if (stage > stage_) {
    stage_ = stage;
    stage_start_ = now;
    done_ = 0;
  }
  done_ = std::max(done_, done);
  total_ = total;
}

v1::LoadProgress LoadTask::Progress() const {
  const absl::Time now = SteadyNow();
  v1::LoadProgress progress;
  std::lock_guard lock(mutex_);
  progress.set_stage(ToProto(stage_));
  progress.set_bytes_done(done_);
  progress.set_bytes_total(total_);
  *progress.mutable_elapsed() = ToProto(now - start_);
  if (const auto eta = EtaLocked(now)) *progress.mutable_eta() = ToProto(*eta);
  return progress;
}

std::optional<absl::Duration> LoadTask::Eta() const {
  std::lock_guard lock(mutex_);
  return EtaLocked(SteadyNow());
}

std::optional<absl::Duration> LoadTask::EtaLocked(absl::Time now) const {
  if (done_ == 0 || total_ < done_) return std::nullopt;
  return (now - stage_start_) * (static_cast<double>(total_ - done_) / static_cast<double>(done_));
}

}  // namespace orcd
