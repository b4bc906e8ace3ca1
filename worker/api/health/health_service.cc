#include "worker/api/health/health_service.h"

#include <optional>
#include <utility>
#include <vector>

namespace orcd {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call. The service's mutex guards its state. The thread that moved the state to kWriting
// or kFinished calls gRPC, without the mutex, so that no other thread can touch the call in
// between. Deletes itself when gRPC is done with it.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* health, std::string service)
      : health_(health), service_(std::move(service)) {}

  // The next operation of the call; the caller has the sole right to perform it.
  enum class Action { kNone, kWrite, kFinish };

  Action NextActionLocked() {
    if (state_ != State::kIdle) return Action::kNone;
    if (cancelled_ || health_->shut_down_) {
      state_ = State::kFinished;
      finish_status_ = cancelled_ ? grpc::Status(grpc::StatusCode::CANCELLED, "watch was cancelled")
                                  : ShuttingDown();
      return Action::kFinish;
    }
    const ServingStatus current = health_->StatusLocked(service_);
    if (sent_ == current) return Action::kNone;
    sent_ = current;
    response_.set_status(current);
    state_ = State::kWriting;
    return Action::kWrite;
  }

  // After kFinish the watcher may be gone.
  void Do(Action action) {
    switch (action) {
      case Action::kNone:
        break;
      case Action::kWrite:
        StartWrite(&response_);
        break;
      case Action::kFinish:
        Finish(std::move(finish_status_));
        break;
    }
  }

  void OnWriteDone(bool ok) override {
    Action action;
    {
      std::lock_guard lock(health_->mu_);
      state_ = State::kIdle;
      if (!ok) cancelled_ = true;
      action = NextActionLocked();
    }
    Do(action);
  }

  void OnCancel() override {
    Action action;
    {
      std::lock_guard lock(health_->mu_);
      cancelled_ = true;
      action = NextActionLocked();
    }
    Do(action);
  }

  void OnDone() override {
    {
      std::lock_guard lock(health_->mu_);
      health_->watchers_.erase(this);
    }
    delete this;
  }

 private:
  enum class State { kIdle, kWriting, kFinished };

  HealthService* const health_;
  const std::string service_;
  State state_ = State::kIdle;
  bool cancelled_ = false;
  std::optional<ServingStatus> sent_;
  HealthCheckResponse response_;
  grpc::Status finish_status_;
};

void HealthService::Set(const std::string& service, bool serving) {
  UpdateWatchers([&] { serving_[service] = serving; });
}

void HealthService::Remove(const std::string& service) {
  UpdateWatchers([&] { serving_.erase(service); });
}

void HealthService::Shutdown() {
  UpdateWatchers([&] { shut_down_ = true; });
}

template <typename Change>
void HealthService::UpdateWatchers(const Change& change) {
  std::vector<std::pair<Watcher*, Watcher::Action>> actions;
  {
    std::lock_guard lock(mu_);
    change();
    for (Watcher* watcher : watchers_) {
      const Watcher::Action action = watcher->NextActionLocked();
      if (action != Watcher::Action::kNone) actions.emplace_back(watcher, action);
    }
  }
  for (const auto& [watcher, action] : actions) watcher->Do(action);
}

HealthService::ServingStatus HealthService::Status(const std::string& service) const {
  std::lock_guard lock(mu_);
  return StatusLocked(service);
}

bool HealthService::is_shut_down() const {
  std::lock_guard lock(mu_);
  return shut_down_;
}

grpc::Status HealthService::UnknownService() {
  return grpc::Status(grpc::StatusCode::NOT_FOUND,
                      "no service of this name is known to this worker");
}

grpc::Status HealthService::ShuttingDown() {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down");
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  const ServingStatus status = Status(request->service());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish(UnknownService());
  } else {
    response->set_status(status);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto* watcher = new Watcher(this, request->service());
  Watcher::Action action;
  {
    std::lock_guard lock(mu_);
    watchers_.insert(watcher);
    action = watcher->NextActionLocked();
  }
  watcher->Do(action);
  return watcher;
}

HealthService::ServingStatus HealthService::StatusLocked(const std::string& service) const {
  const auto it = serving_.find(service);
  if (it == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return it->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

}  // namespace orcd
