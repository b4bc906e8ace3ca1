#include "worker/state_publisher.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace orcd {

StatePublisher::StatePublisher(HealthService& health, const Logger& log,
                               std::function<void(const std::string& kind)> on_fault)
    : health_(health), log_(log), on_fault_(std::move(on_fault)) {}

void StatePublisher::set_registration(Registration* registration) {
  std::lock_guard lock(mutex_);
  registration_ = registration;
}

void StatePublisher::Publish(const ModelHost& host) {
  // One thread at a time, so that the last report is the current state.
  std::lock_guard lock(mutex_);
  const v1::WorkerStatus status = host.Status();
  const bool ready = status.state() == v1::WORKER_STATE_READY;
  const bool failed = status.state() == v1::WORKER_STATE_FAILED;
  health_.Set(kHealthEverything, ready);
  health_.Set(kHealthWorker, ready);
  health_.Set(kHealthReadiness, ready);
  health_.Set(kHealthLiveness, !failed);
  const std::string model_name =
      status.has_model() ? absl::StrCat("model/", status.model().model_id()) : std::string();
  if (!model_name_.empty() && model_name_ != model_name) health_.Remove(model_name_);
  if (!model_name.empty()) health_.Set(model_name, ready);
  model_name_ = model_name;
  if (status.state() != published_) {
    published_ = status.state();
    const std::string name = v1::WorkerState_Name(status.state());
    if (failed) {
      log_.Error("state", {{"state", name}, {"reason", status.reason()}});
      on_fault_(host.fault_kind());
    } else {
      log_.Info("state", {{"state", name}, {"reason", status.reason()}});
    }
    changed_.notify_all();
  }
  if (registration_ != nullptr) registration_->NotifyStateChanged();
}

bool StatePublisher::AwaitDrained() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return published_ == v1::WORKER_STATE_DRAINED || published_ == v1::WORKER_STATE_FAILED;
  });
  return published_ == v1::WORKER_STATE_DRAINED;
}

}  // namespace orcd
