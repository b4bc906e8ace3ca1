#include "worker/api/health/health_service.h"

#include <optional>
#include <utility>

#include "worker/base/messages.h"
#include "worker/stream/refused_call.h"
#include "worker/stream/stream_writer.h"

namespace orcd {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call.
class HealthService::Watcher final : public StreamWriter {
 public:
  Watcher(grpc::CallbackServerContext* context, HealthService* health, std::string service)
      : StreamWriter(context, nullptr), health_(health), service_(std::move(service)) {}

  using StreamWriter::Advance;

 private:
  Output Next() override {
    if (client_gone()) {
      return {.end = grpc::Status(grpc::StatusCode::CANCELLED, "watch was cancelled")};
    }
    std::lock_guard lock(health_->mu_);
    if (health_->shut_down_) return {.end = ShuttingDown()};
    const ServingStatus current = health_->StatusLocked(service_);
    if (sent_ == current) return {};
    sent_ = current;
    HealthCheckResponse response;
    response.set_status(current);
    return {.messages = {SerializeMessage(response)}};
  }

  void OnOver() override {
    std::lock_guard lock(health_->mu_);
    health_->watchers_.erase(std::static_pointer_cast<Watcher>(shared_from_this()));
  }

  HealthService* const health_;
  const std::string service_;
  // Owned by the thread that calls Next.
  std::optional<ServingStatus> sent_;
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
  std::set<std::shared_ptr<Watcher>> watchers;
  {
    std::lock_guard lock(mu_);
    change();
    watchers = watchers_;
  }
  for (const auto& watcher : watchers) watcher->Advance();
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

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const absl::StatusOr<HealthCheckRequest> request = ParseRequest<HealthCheckRequest>(*bytes);
  // As gRPC answers a Check that it cannot parse.
  if (!request.ok()) return new RefusedStream(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""));
  auto watcher = std::make_shared<Watcher>(context, this, request->service());
  auto* const reactor = watcher->Serve();
  {
    std::lock_guard lock(mu_);
    watchers_.insert(watcher);
  }
  watcher->Advance();
  return reactor;
}

HealthService::ServingStatus HealthService::StatusLocked(const std::string& service) const {
  const auto it = serving_.find(service);
  if (it == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return it->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

}  // namespace orcd
