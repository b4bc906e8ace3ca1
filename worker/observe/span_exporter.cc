#include "worker/observe/span_exporter.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "runtime/base/steady_time.h"
#include "worker/base/message_text.h"
#include "worker/base/version.h"

namespace orcd {
namespace {

using opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;
using opentelemetry::proto::collector::trace::v1::TraceService;

constexpr int kTries = 3;

// Codes after which another try may succeed, as listed in OTLP's specification.
bool MayRetry(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
      return true;
    default:
      return false;
  }
}

}  // namespace

SpanExporter::SpanExporter(Options options, const Logger& log)
    : options_(std::move(options)), log_(log) {
  thread_ = std::thread([this] { Run(); });
}

SpanExporter::~SpanExporter() { Stop(absl::ZeroDuration()); }

void SpanExporter::Add(Span span) {
  std::vector<Span> one;
  one.push_back(std::move(span));
  Add(std::move(one));
}

void SpanExporter::Add(std::vector<Span> spans) {
  size_t dropped = 0;
  bool full = false;
  {
    std::lock_guard lock(mutex_);
    const size_t taken =
        stopping_ ? 0 : std::min(spans.size(), options_.max_queued - queue_.size());
    std::move(spans.begin(), spans.begin() + static_cast<ptrdiff_t>(taken),
              std::back_inserter(queue_));
    dropped = spans.size() - taken;
    full = queue_.size() >= options_.max_batch;
  }
  if (full) changed_.notify_all();
  if (dropped > 0) options_.on_result("dropped", dropped);
}

void SpanExporter::Stop(absl::Duration grace) {
  {
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    stop_by_ = SteadyNow() + grace;
    changed_.notify_all();
    // A try that is under way has its earlier deadline; later tries end by stop_by_.
    changed_.wait_for(lock, absl::ToChronoMilliseconds(grace),
                      [this] { return in_flight_ == nullptr; });
    if (in_flight_ != nullptr) in_flight_->TryCancel();
  }
  thread_.join();
}

void SpanExporter::Run() {
  std::vector<Span> batch;
  while (TakeBatch(batch)) {
    if (!batch.empty()) Send(std::move(batch));
    batch.clear();
  }
}

bool SpanExporter::TakeBatch(std::vector<Span>& batch) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(options_.interval),
                    [this] { return stopping_ || queue_.size() >= options_.max_batch; });
  const size_t size = std::min(queue_.size(), options_.max_batch);
  const auto end = queue_.begin() + static_cast<ptrdiff_t>(size);
  std::move(queue_.begin(), end, std::back_inserter(batch));
  queue_.erase(queue_.begin(), end);
  return !stopping_ || size > 0;
}

void SpanExporter::Send(std::vector<Span> batch) {
  const size_t count = batch.size();
  Request request;
  auto* resource_spans = request.add_resource_spans();
  const auto add_attribute = [&](const char* key, const std::string& value) {
    auto* attribute = resource_spans->mutable_resource()->add_attributes();
    attribute->set_key(key);
    attribute->mutable_value()->set_string_value(value);
  };
  add_attribute("service.name", "worker-orcd");
  add_attribute("service.version", std::string(Version()));
  add_attribute("service.instance.id", options_.instance_id);
  add_attribute("orcd.worker_id", options_.worker_id);
  auto* scope_spans = resource_spans->add_scope_spans();
  scope_spans->mutable_scope()->set_name("worker-orcd");
  scope_spans->mutable_scope()->set_version(std::string(Version()));
  for (Span& span : batch) *scope_spans->add_spans() = std::move(span);
  MakeTextValid(request);

  grpc::Status status;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0 && !Wait(options_.retry_after * i)) break;
    status = Try(request);
    if (status.ok() || !MayRetry(status.error_code())) break;
  }
  options_.on_result(status.ok() ? "exported" : "failed", count);
  if (status.ok()) {
    if (std::exchange(failing_, false)) log_.Info("the collector accepts spans again");
    return;
  }
  // One line says that the collector is away; each batch would only repeat it.
  if (std::exchange(failing_, true)) return;
  log_.Warning(
      "the collector accepts no spans; they are dropped until it does",
      {{"endpoint", options_.endpoint},
       {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()))},
       {"error", status.error_message()}});
}

SpanExporter::Stub& SpanExporter::UpToDateStub() {
  if (stub_ == nullptr || options_.tls != nullptr) {
    std::shared_ptr<grpc::ChannelCredentials> now =
        options_.tls == nullptr ? grpc::InsecureChannelCredentials() : options_.tls->credentials();
    if (now != credentials_) {
      credentials_ = std::move(now);
      stub_ = TraceService::NewStub(grpc::CreateChannel(options_.endpoint, credentials_));
    }
  }
  return *stub_;
}

grpc::Status SpanExporter::Try(const Request& request) {
  grpc::ClientContext context;
  {
    std::lock_guard lock(mutex_);
    const absl::Duration left = std::min(options_.timeout, stop_by_ - SteadyNow());
    context.set_deadline(absl::ToChronoTime(absl::Now() + left));
    in_flight_ = &context;
  }
  ExportTraceServiceResponse response;
  grpc::Status status = UpToDateStub().Export(&context, request, &response);
  std::lock_guard lock(mutex_);
  in_flight_ = nullptr;
  changed_.notify_all();
  return status;
}

bool SpanExporter::Wait(absl::Duration duration) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, absl::ToChronoMilliseconds(duration),
                            [this] { return stopping_; });
}

}  // namespace orcd
