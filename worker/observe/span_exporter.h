// Sends finished spans to an OpenTelemetry collector.
#ifndef ORCD_WORKER_OBSERVE_SPAN_EXPORTER_H_
#define ORCD_WORKER_OBSERVE_SPAN_EXPORTER_H_

#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "worker/base/logging.h"
#include "worker/security/tls.h"

namespace orcd {

// Owns the queue of spans and the thread that sends them, in batches, over OTLP/gRPC. A span is
// dropped if the queue is full, and a batch if a collector does not accept it in three tries:
// no caller ever waits for a span. Any thread may call Add.
class SpanExporter {
 public:
  using Span = opentelemetry::proto::trace::v1::Span;

  struct Options {
    // host:port of the collector.
    std::string endpoint;
    // Null: plaintext.
    std::shared_ptr<const ClientTls> tls = nullptr;
    // Attributes of the resource that the spans come from.
    std::string worker_id;
    std::string instance_id;
    absl::Duration interval = absl::Seconds(1);
    // Timeout of one try, and wait between tries.
    absl::Duration timeout = absl::Seconds(5);
    absl::Duration retry_after = absl::Milliseconds(500);
    size_t max_queued = 4096;
    size_t max_batch = 512;
    // Called with the outcome of `count` spans: `exported`, `dropped` (queue full) or `failed`.
    std::function<void(std::string_view result, size_t count)> on_result = [](std::string_view,
                                                                              size_t) {};
  };

  // `log` must outlive the exporter.
  SpanExporter(Options options, const Logger& log);
  // Same as Stop without grace.
  ~SpanExporter();

  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  void Add(Span span);
  void Add(std::vector<Span> spans);

  // Sends the queued spans, for at most `grace`, and joins the thread. Later calls do nothing.
  void Stop(absl::Duration grace);

 private:
  using Request = opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
  using Stub = opentelemetry::proto::collector::trace::v1::TraceService::Stub;

  void Run();
  // Takes up to one batch from the queue; returns false once the queue is empty and the exporter
  // stops.
  bool TakeBatch(std::vector<Span>& batch);
  void Send(std::vector<Span> batch);
  // Returns a stub on the channel for the next try.
  Stub& UpToDateStub();
  grpc::Status Try(const Request& request);
  // Returns false if the exporter stops before `duration` is over.
  bool Wait(absl::Duration duration);

  const Options options_;
  const Logger& log_;
  // Used by thread_ alone.
  std::unique_ptr<Stub> stub_;
  // Credentials of stub_'s channel.
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  bool failing_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<Span> queue_;
  bool stopping_ = false;
  absl::Time stop_by_ = absl::InfiniteFuture();
  grpc::ClientContext* in_flight_ = nullptr;

  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_SPAN_EXPORTER_H_
