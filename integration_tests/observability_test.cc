// The worker as operators see it: metrics, spans, logs, probes under load.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "integration_tests/http_get.h"
#include "integration_tests/worker_fixture.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

namespace orcd::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;
using opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
using opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;
using opentelemetry::proto::collector::trace::v1::TraceService;
using Span = opentelemetry::proto::trace::v1::Span;
using ::testing::Contains;
using ::testing::Key;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

// Keeps every span that it receives. Any thread may call.
class SpanSink final : public TraceService::Service {
 public:
  SpanSink() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SpanSink() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  grpc::Status Export(grpc::ServerContext*, const ExportTraceServiceRequest* request,
                      ExportTraceServiceResponse*) override {
    std::lock_guard lock(mutex_);
    for (const auto& resource : request->resource_spans()) {
      for (const auto& scope : resource.scope_spans()) {
        spans_.insert(spans_.end(), scope.spans().begin(), scope.spans().end());
      }
    }
    return grpc::Status::OK;
  }
  std::vector<Span> spans() const {
    std::lock_guard lock(mutex_);
    return spans_;
  }

 private:
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::unique_ptr<grpc::Server> server_;
};

class ObservabilityTest : public WorkerTest {
 protected:
  // Samples of /metrics; keys are name and labels as in the text format.
  std::map<std::string, double> Scrape() {
    const std::string text = HttpGet(worker().SideAddress("metrics"), "/metrics");
    std::map<std::string, double> samples;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      const size_t space = line.rfind(' ');
      double value = 0;
      if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
      if (absl::SimpleAtod(line.substr(space + 1), &value)) samples[line.substr(0, space)] = value;
    }
    return samples;
  }

  RpcError GenerateWith(const std::map<std::string, std::string>& headers,
                        const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(60));
    for (const auto& [name, value] : headers) context.AddMetadata(name, value);
    auto reader = stub().Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return DecodeError(reader->Finish());
  }
};

TEST_F(ObservabilityTest, IdleConnectionsDelayNoScrape) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--metrics-listen", "localhost:0"}));
  std::vector<int> idle;
  for (const size_t count : {0u, 2u, 50u, 200u}) {
    while (idle.size() < count) {
      idle.push_back(ConnectTo(worker().SideAddress("metrics")));
      ASSERT_GE(idle.back(), 0);
    }
    const absl::Time begun = absl::Now();
    EXPECT_EQ(Scrape().count("orcd_requests_running"), 1u) << count << " idle connections";
    EXPECT_LT(absl::Now() - begun, Bound(absl::Seconds(5))) << count << " idle connections";
  }
  for (const int fd : idle) close(fd);
}

TEST_F(ObservabilityTest, MetricsAreServedOverIpv6) {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool has_ipv6 =
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(socket);
  if (!has_ipv6) GTEST_SKIP() << "this machine has no IPv6";
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--metrics-listen", "[::1]:0"}));
  EXPECT_TRUE(absl::StartsWith(worker().SideAddress("metrics"), "[::1]:"));
  EXPECT_EQ(Scrape().count("orcd_requests_running"), 1u);
}

TEST_F(ObservabilityTest, MetricsCountWhatHappened) {
  ASSERT_NO_FATAL_FAILURE(
      StartWorker({"--metrics-listen", "127.0.0.1:0", "--max-seqs", "1", "--max-waiting", "0"}));
  auto before = Scrape();
  EXPECT_EQ(before["orcd_worker_state{state=\"WORKER_STATE_IDLE\"}"], 1);
  EXPECT_EQ(before["orcd_model_load_progress_ratio"], 0);
  EXPECT_EQ(before["orcd_model_load_seconds_count"], 0);
  EXPECT_FALSE(client().Generate(TextRequest("Hello", 3)).error.ok());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);

  v1::GenerateRequest request = EndlessRequest("counted");
  request.mutable_stop()->set_max_tokens(20);
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation));
  // The request's slot is free a moment after its stream has ended.
  ASSERT_TRUE(client().WaitForQuiet());
  GenerateCall running(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(running.ReadUntilTokens(1));
  EXPECT_TRUE(IsError(client().Generate(TextRequest("Hello", 3)).error,
                      grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  auto during = Scrape();
  EXPECT_EQ(during["orcd_requests_running"], 1);
  EXPECT_GT(during["orcd_kv_cache_usage_ratio"], 0);
  ASSERT_TRUE(client().Cancel("running").ok());
  running.Finish();

  std::map<std::string, double> after;
  // The worker counts a request when its call is over, a moment after the client knows.
  EXPECT_TRUE(WaitUntil(
      [&] {
        after = Scrape();
        return after["orcd_request_e2e_seconds_count"] == 2;
      },
      Bound(absl::Seconds(10))));
  EXPECT_EQ(after["orcd_requests_total{code=\"OK\",finish_reason=\"FINISH_REASON_MAX_TOKENS\"}"],
            1);
  EXPECT_EQ(
      after["orcd_requests_total{code=\"CANCELLED\",finish_reason=\"FINISH_REASON_CANCELLED\"}"],
      1);
  EXPECT_EQ(after["orcd_requests_total{code=\"RESOURCE_EXHAUSTED\",finish_reason=\"none\"}"], 1);
  EXPECT_EQ(after["orcd_rejections_total{reason=\"QUEUE_FULL\"}"], 1);
  EXPECT_EQ(after["orcd_rejections_total{reason=\"MODEL_NOT_LOADED\"}"], 1);
  EXPECT_EQ(after["orcd_prompt_tokens_total"], 2 * generation.started->prompt_tokens());
  EXPECT_EQ(after["orcd_generated_tokens_total"],
            20 + running.so_far().finished->usage().generated_tokens());
  EXPECT_EQ(after["orcd_time_to_first_token_seconds_count"], 2);
  EXPECT_EQ(after["orcd_cancel_to_release_seconds_count"], 1);
  EXPECT_EQ(after["orcd_model_load_seconds_count"], 1);
  EXPECT_EQ(after["orcd_model_load_progress_ratio"], 1);
  EXPECT_EQ(after["orcd_worker_state{state=\"WORKER_STATE_READY\"}"], 1);
  EXPECT_EQ(after["orcd_requests_running"], 0);
  EXPECT_EQ(after["orcd_vram_bytes{kind=\"weights\"}"],
            static_cast<double>(client().Status().memory().weights_bytes()));
  // Every token except the first of each request follows another.
  EXPECT_EQ(after["orcd_inter_token_latency_seconds_count"],
            after["orcd_generated_tokens_total"] - 2);
}

TEST_F(ObservabilityTest, EveryNameThatServersOfThisKindHaveIsThere) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--metrics-listen", "127.0.0.1:0"}));
  std::map<std::string, double> names;
  for (const auto& [sample, value] : Scrape()) names[sample.substr(0, sample.find('{'))] = value;
  for (const char* name : {"requests_running",
                           "requests_waiting",
                           "kv_cache_usage_ratio",
                           "model_load_progress_ratio",
                           "vram_bytes",
                           "time_to_first_token_seconds_bucket",
                           "inter_token_latency_seconds_bucket",
                           "request_queue_seconds_bucket",
                           "request_prefill_seconds_bucket",
                           "request_decode_seconds_bucket",
                           "request_e2e_seconds_bucket",
                           "model_load_seconds_bucket",
                           "cancel_to_release_seconds_bucket",
                           "requests_total",
                           "rejections_total",
                           "prompt_tokens_total",
                           "cached_prompt_tokens_total",
                           "generated_tokens_total",
                           "gpu_faults_total",
                           "heartbeats_total"}) {
    EXPECT_THAT(names, Contains(Key(absl::StrCat("orcd_", name))));
  }
}

TEST_F(ObservabilityTest, SpansJoinTheCallersTrace) {
  SpanSink sink;
  ASSERT_NO_FATAL_FAILURE(StartLoaded(
      {"--otlp-endpoint", sink.address(), "--log-format", "json", "--trace-sample-ratio", "0"}));
  v1::GenerateRequest request = TextRequest("Hello", 5);
  request.set_request_id("traced");
  request.mutable_stop()->set_ignore_eog(true);
  ASSERT_TRUE(GenerateWith({{"traceparent", absl::StrCat("00-", kTraceId, "-", kParentId, "-01")},
                            {"tracestate", "vendor=x"}},
                           request)
                  .ok());
  // Requests are not recorded if the caller's trace flags say so, nor, at a ratio of 0, without a
  // traceparent.
  request.set_request_id("unsampled");
  ASSERT_TRUE(
      GenerateWith({{"traceparent", absl::StrCat("00-", kTraceId, "-", kParentId, "-00")}}, request)
          .ok());
  request.set_request_id("untraced");
  ASSERT_TRUE(GenerateWith({}, request).ok());
  ASSERT_NO_FATAL_FAILURE(StopWorker());

  const std::vector<Span> spans = sink.spans();
  ASSERT_EQ(spans.size(), 4u);
  std::map<std::string, Span> by_name;
  for (const Span& span : spans) {
    EXPECT_EQ(absl::BytesToHexString(span.trace_id()), kTraceId);
    EXPECT_EQ(span.trace_state(), "vendor=x");
    EXPECT_LE(span.start_time_unix_nano(), span.end_time_unix_nano());
    by_name[span.name()] = span;
  }
  const Span& call = by_name["orcd.v1.Worker/Generate"];
  EXPECT_EQ(absl::BytesToHexString(call.parent_span_id()), kParentId);
  EXPECT_EQ(call.kind(), Span::SPAN_KIND_SERVER);
  std::map<std::string, std::string> attributes;
  for (const auto& attribute : call.attributes()) {
    attributes[attribute.key()] = attribute.value().has_string_value()
                                      ? attribute.value().string_value()
                                      : absl::StrCat(attribute.value().int_value());
  }
  EXPECT_EQ(attributes["orcd.request_id"], "traced");
  EXPECT_EQ(attributes["gen_ai.usage.output_tokens"], "5");
  for (const char* phase : {"queue", "prefill", "decode"}) {
    EXPECT_EQ(by_name[phase].parent_span_id(), call.span_id()) << phase;
    EXPECT_GE(by_name[phase].start_time_unix_nano(), call.start_time_unix_nano());
  }

  bool logged = false;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(worker().Log(), '\n'))) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded() || json.value("request_id", "") != "traced") continue;
    logged = json.value("trace_id", "") == kTraceId;
  }
  EXPECT_TRUE(logged);
}

TEST_F(ObservabilityTest, ACollectorThatIsAwayOrHangsHoldsNothingUp) {
  // Accepts connections and never answers.
  const int hole = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int port = ListenOnLoopback(hole);
  ASSERT_GT(port, 0);
  ASSERT_NO_FATAL_FAILURE(StartLoaded(
      {"--otlp-endpoint", absl::StrCat("127.0.0.1:", port), "--metrics-listen", "127.0.0.1:0"}));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  }
  const absl::StatusOr<ProcessEnd> end = worker().Terminate(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
  ::close(hole);
}

TEST_F(ObservabilityTest, ProbesAnswerWhileTheWorkerIsBusy) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-seqs", "8", "--health-listen", "127.0.0.1:0"}));
  std::atomic<bool> stop = false;
  std::vector<std::thread> users;
  for (int i = 0; i < 12; ++i) {
    users.emplace_back([&, i] {
      WorkerClient own(worker().address());
      std::vector<uint32_t> prompt(400, static_cast<uint32_t>(i + 1));
      while (!stop) own.Generate(TokenRequest(prompt, 100));
    });
  }
  ASSERT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().running_requests() == 8; }));
  std::vector<absl::Duration> took;
  WorkerClient probe(worker().SideAddress("health"));
  for (int i = 0; i < 200; ++i) {
    HealthCheckResponse::ServingStatus serving = HealthCheckResponse::UNKNOWN;
    const absl::Time begin = absl::Now();
    ASSERT_TRUE(probe.Check(i % 2 == 0 ? "liveness" : "readiness", &serving).ok());
    took.push_back(absl::Now() - begin);
    ASSERT_EQ(serving, HealthCheckResponse::SERVING);
    absl::SleepFor(absl::Milliseconds(5));
  }
  stop = true;
  for (std::thread& user : users) user.join();
  std::sort(took.begin(), took.end());
  // The clients of this test share the machine's cores with the worker, so up to one probe in ten
  // may be slow because of them.
  EXPECT_LT(took[took.size() * 9 / 10], Bound(absl::Milliseconds(50)))
      << "median " << took[took.size() / 2] << ", longest " << took.back();
  RecordProperty("median_us", absl::ToInt64Microseconds(took[took.size() / 2]));
  RecordProperty("longest_us", absl::ToInt64Microseconds(took.back()));
}

TEST_F(ObservabilityTest, AModelHasAHealthNameOfItsOwn) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  HealthCheckResponse::ServingStatus serving = HealthCheckResponse::UNKNOWN;
  EXPECT_EQ(client().Check("model/nano", &serving).code, grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("model/nano");
  auto watch = client().health_stub().Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(client().Check("model/nano", &serving).ok());
  EXPECT_EQ(serving, HealthCheckResponse::SERVING);
  ASSERT_TRUE(client().Check("readiness", &serving).ok());
  EXPECT_EQ(serving, HealthCheckResponse::SERVING);
  EXPECT_EQ(client().Check("model/other", &serving).code, grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(client().Unload(false).ok());
  ASSERT_TRUE(watch->Read(&response));
  context.TryCancel();
  EXPECT_NE(response.status(), HealthCheckResponse::SERVING);
  EXPECT_EQ(client().Check("model/nano", &serving).code, grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace orcd::testing
