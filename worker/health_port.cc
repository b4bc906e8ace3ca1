#include "worker/health_port.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/async_unary_call.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/error.h"
#include "runtime/steady_time.h"

namespace orcd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ServingStatus = HealthCheckResponse::ServingStatus;

// The interval at which watchers are looked at.
constexpr absl::Duration kLook = absl::Milliseconds(100);

}  // namespace

class HealthPort::Event {
 public:
  virtual ~Event() = default;
  // The operation is done, and worked out where `ok`. May delete this.
  virtual void OnDone(bool ok) = 0;
};

// Waits for one Check call and answers it. Deletes itself.
class HealthPort::CheckCall final : public Event {
 public:
  explicit CheckCall(HealthPort& port) : port_(port), responder_(&context_) {
    port.service_.RequestCheck(&context_, &request_, &responder_, port.queue_.get(),
                               port.queue_.get(), static_cast<Event*>(this));
  }

  void OnDone(bool ok) override {
    if (answered_ || !ok) {
      delete this;
      return;
    }
    if (!port_.stopped_) new CheckCall(port_);
    answered_ = true;
    HealthCheckResponse response;
    response.set_status(port_.health_.Status(request_.service()));
    if (response.status() == HealthCheckResponse::SERVICE_UNKNOWN) {
      responder_.FinishWithError(HealthService::UnknownService(), static_cast<Event*>(this));
    } else {
      responder_.Finish(response, grpc::Status::OK, static_cast<Event*>(this));
    }
  }

 private:
  HealthPort& port_;
  grpc::ServerContext context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncResponseWriter<HealthCheckResponse> responder_;
  bool answered_ = false;
};

// Waits for one Watch call and tells it of each change. Deletes itself.
class HealthPort::WatchCall final : public Event {
 public:
  explicit WatchCall(HealthPort& port) : port_(port), end_(*this), writer_(&context_) {
    context_.AsyncNotifyWhenDone(static_cast<Event*>(&end_));
    port.service_.RequestWatch(&context_, &request_, &writer_, port.queue_.get(), port.queue_.get(),
                               static_cast<Event*>(this));
  }

  // It has come, or what it was last sent was taken or not.
  void OnDone(bool ok) override {
    busy_ = false;
    if (!begun_) {
      if (!ok) {
        // There is no call, and so no end of one.
        delete this;
        return;
      }
      begun_ = true;
      if (!port_.stopped_) new WatchCall(port_);
      port_.watches_.insert(this);
    } else if (finishing_) {
      finished_ = true;
      return DeleteWhenOver();
    } else if (!ok) {
      cancelled_ = true;
    }
    Look();
  }

  // Writes what is new.
  void Look() {
    if (busy_ || finishing_) return;
    if (cancelled_ || port_.health_.is_shut_down()) {
      busy_ = finishing_ = true;
      writer_.Finish(cancelled_ ? grpc::Status(grpc::StatusCode::CANCELLED, "watch was cancelled")
                                : HealthService::ShuttingDown(),
                     static_cast<Event*>(this));
      return;
    }
    const ServingStatus status = port_.health_.Status(request_.service());
    if (sent_ == status) return;
    sent_ = status;
    busy_ = true;
    HealthCheckResponse response;
    response.set_status(status);
    writer_.Write(response, static_cast<Event*>(this));
  }

 private:
  // The call is over, whoever ended it.
  class End final : public Event {
   public:
    explicit End(WatchCall& call) : call_(call) {}
    void OnDone(bool) override {
      call_.is_over_ = true;
      call_.cancelled_ = true;
      call_.Look();
      call_.DeleteWhenOver();
    }

   private:
    WatchCall& call_;
  };

  void DeleteWhenOver() {
    if (!finished_ || !is_over_) return;
    port_.watches_.erase(this);
    delete this;
  }

  HealthPort& port_;
  End end_;
  grpc::ServerContext context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncWriter<HealthCheckResponse> writer_;
  std::optional<ServingStatus> sent_;
  // An operation is under way.
  bool busy_ = true;
  bool begun_ = false;
  bool cancelled_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  bool is_over_ = false;
};

// Shuts the queue down on the thread, so that nobody asks it for anything afterwards.
class HealthPort::StopEvent final : public Event {
 public:
  explicit StopEvent(HealthPort& port) : port_(port) {}
  void OnDone(bool) override {
    port_.stopped_ = true;
    port_.queue_->Shutdown();
  }

 private:
  HealthPort& port_;
};

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(ServerOptions options,
                                                              const HealthService& health) {
  std::unique_ptr<HealthPort> port(new HealthPort(health));
  options.own_queue = &port->queue_;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, {&port->service_});
  if (!server.ok()) {
    // There is none where it could not listen.
    if (port->queue_ == nullptr) return server.status();
    port->queue_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (port->queue_->Next(&tag, &ok)) {
    }
    return server.status();
  }
  port->server_ = *std::move(server);
  new CheckCall(*port);
  new WatchCall(*port);
  port->thread_ = std::thread([port = port.get()] { port->Run(); });
  return port;
}

HealthPort::HealthPort(const HealthService& health) : health_(health) {}

HealthPort::~HealthPort() { Stop(); }

void HealthPort::Stop() {
  if (!thread_.joinable()) return;
  server_->Stop(absl::ZeroDuration());
  stop_event_ = std::make_unique<StopEvent>(*this);
  stop_alarm_.Set(queue_.get(), absl::ToChronoTime(absl::Now()),
                  static_cast<Event*>(stop_event_.get()));
  thread_.join();
}

void HealthPort::Run() {
  while (true) {
    void* tag = nullptr;
    bool ok = false;
    const absl::Time deadline = watches_.empty() ? absl::InfiniteFuture() : absl::Now() + kLook;
    const auto got = queue_->AsyncNext(&tag, &ok, absl::ToChronoTime(deadline));
    if (got == grpc::CompletionQueue::SHUTDOWN) return;
    if (got == grpc::CompletionQueue::GOT_EVENT) static_cast<Event*>(tag)->OnDone(ok);
    const absl::Time now = SteadyNow();
    if (now < next_look_) continue;
    next_look_ = now + kLook;
    // A look starts an operation at most; nothing goes before its event comes.
    for (WatchCall* watch : watches_) watch->Look();
  }
}

}  // namespace orcd
