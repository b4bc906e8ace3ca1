#include "worker/observe/span_exporter.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "integration_tests/certificates.h"
#include "testing/event.h"
#include "testing/eventually.h"

namespace orcd {
namespace {

using opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
using opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;
using opentelemetry::proto::collector::trace::v1::TraceService;

// A collector that keeps the spans it gets and answers as the test says.
class FakeCollector final : public TraceService::Service {
 public:
  explicit FakeCollector(const std::shared_ptr<grpc::ServerCredentials>& credentials =
                             grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCollector() override {
    hang_over_.Notify();
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Export(grpc::ServerContext*, const ExportTraceServiceRequest* request,
                      ExportTraceServiceResponse*) override {
    bool hangs;
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(*request);
      hangs = hangs_;
      if (!answers_.empty()) {
        grpc::Status answer = answers_.front();
        answers_.erase(answers_.begin());
        return answer;
      }
    }
    if (hangs) hang_over_.WaitFor(absl::Seconds(20));
    return grpc::Status::OK;
  }

  void Answer(std::vector<grpc::Status> answers) {
    std::lock_guard lock(mutex_);
    answers_ = std::move(answers);
  }
  void Hang() {
    std::lock_guard lock(mutex_);
    hangs_ = true;
  }
  std::vector<ExportTraceServiceRequest> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  int port_ = 0;
  Event hang_over_;
  std::mutex mutex_;
  std::vector<ExportTraceServiceRequest> requests_;
  std::vector<grpc::Status> answers_;
  bool hangs_ = false;
  std::unique_ptr<grpc::Server> server_;
};

class SpanExporterTest : public ::testing::Test {
 protected:
  SpanExporter::Options OptionsFor(const std::string& endpoint) {
    SpanExporter::Options options;
    options.endpoint = endpoint;
    options.worker_id = "w";
    options.instance_id = "i";
    options.interval = absl::Milliseconds(50);
    options.retry_after = absl::Milliseconds(10);
    options.timeout = absl::Seconds(2);
    options.on_result = [this](std::string_view result, size_t count) {
      std::lock_guard lock(mutex_);
      results_[std::string(result)] += count;
    };
    return options;
  }
  static SpanExporter::Span Named(const std::string& name) {
    SpanExporter::Span span;
    span.set_name(name);
    return span;
  }
  size_t Result(const std::string& result) {
    std::lock_guard lock(mutex_);
    return results_[result];
  }

  const Logger log_{LogFormat::kText, LogLevel::kError};
  std::mutex mutex_;
  std::map<std::string, size_t> results_;
};

TEST_F(SpanExporterTest, SendsInBatchesAndSaysWhoSends) {
  FakeCollector collector;
  SpanExporter exporter(OptionsFor(collector.address()), log_);
  for (int i = 0; i < 40; ++i) exporter.Add(Named(absl::StrCat("s", i)));
  ASSERT_TRUE(Eventually([&] { return Result("exported") == 40; }));
  const auto requests = collector.requests();
  EXPECT_LE(requests.size(), 3u);
  std::map<std::string, std::string> attributes;
  for (const auto& attribute : requests[0].resource_spans(0).resource().attributes()) {
    attributes[attribute.key()] = attribute.value().string_value();
  }
  EXPECT_EQ(attributes["service.name"], "worker-orcd");
  EXPECT_EQ(attributes["service.instance.id"], "i");
  EXPECT_EQ(attributes["orcd.worker_id"], "w");
  EXPECT_EQ(requests[0].resource_spans(0).scope_spans(0).spans(0).name(), "s0");
}

TEST_F(SpanExporterTest, TriesAgainWhereThatMayHelp) {
  FakeCollector collector;
  collector.Answer({grpc::Status(grpc::StatusCode::UNAVAILABLE, ""),
                    grpc::Status(grpc::StatusCode::UNAVAILABLE, "")});
  SpanExporter exporter(OptionsFor(collector.address()), log_);
  exporter.Add(Named("a"));
  ASSERT_TRUE(Eventually([&] { return Result("exported") == 1; }));
  EXPECT_EQ(collector.requests().size(), 3u);
  collector.Answer({grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "")});
  exporter.Add(Named("b"));
  ASSERT_TRUE(Eventually([&] { return Result("failed") == 1; }));
  EXPECT_EQ(collector.requests().size(), 4u);
}

TEST_F(SpanExporterTest, DropsWhatDoesNotFitAndNeverWaits) {
  FakeCollector collector;
  collector.Hang();
  SpanExporter::Options options = OptionsFor(collector.address());
  options.max_queued = 100;
  options.max_batch = 10;
  SpanExporter exporter(options, log_);
  const absl::Time start = absl::Now();
  for (int i = 0; i < 1000; ++i) exporter.Add(Named("s"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  EXPECT_GE(Result("dropped"), 890u);
  EXPECT_LE(Result("dropped"), 900u);
}

TEST_F(SpanExporterTest, StopSendsWhatWaitsAndKeepsToItsGrace) {
  FakeCollector collector;
  SpanExporter::Options options = OptionsFor(collector.address());
  options.interval = absl::Hours(1);
  SpanExporter exporter(options, log_);
  for (int i = 0; i < 5; ++i) exporter.Add(Named("s"));
  exporter.Stop(absl::Seconds(5));
  EXPECT_EQ(Result("exported"), 5u);

  collector.Hang();
  SpanExporter second(options, log_);
  second.Add(Named("s"));
  const absl::Time start = absl::Now();
  second.Stop(absl::Milliseconds(200));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(Result("failed"), 1u);
  second.Add(Named("late"));
  EXPECT_EQ(Result("dropped"), 1u);
}

// The collector shows the same certificate all the time; the authorities that the worker trusts
// change.
TEST_F(SpanExporterTest, SpeaksTlsAndTakesAuthoritiesThatChange) {
  const testing::CertificateAuthority other("other");
  const testing::CertificateAuthority own("own");
  const testing::Issued issued = own.Issue("collector");
  grpc::SslServerCredentialsOptions server_options;
  server_options.pem_key_cert_pairs = {{issued.key, issued.certificate}};
  FakeCollector collector(grpc::SslServerCredentials(server_options));

  const std::string ca = absl::StrCat(::testing::TempDir(), "/otlp-ca-", getpid(), ".pem");
  const auto write = [&](const testing::CertificateAuthority& authority) {
    std::ofstream(ca, std::ios::trunc) << authority.certificate();
  };
  write(other);
  // Looks only when the test tells it to. A change counts at the second look.
  FileWatcher watcher(log_, absl::Hours(1));
  const auto trust = [&](const testing::CertificateAuthority& authority) {
    write(authority);
    for (int i = 0; i < 2; ++i) watcher.Look();
  };
  const auto authorities = WatchAuthorities(ca, "otlp-ca", watcher, nullptr);
  ASSERT_TRUE(authorities.ok()) << authorities.status();
  SpanExporter::Options options = OptionsFor(collector.address());
  options.tls = std::make_shared<const ClientTls>(*authorities, std::nullopt);
  SpanExporter exporter(options, log_);

  exporter.Add(Named("a"));
  ASSERT_TRUE(Eventually([&] { return Result("failed") == 1; }));
  EXPECT_TRUE(collector.requests().empty());
  trust(own);
  exporter.Add(Named("b"));
  ASSERT_TRUE(Eventually([&] { return Result("exported") + Result("failed") == 2; }));
  EXPECT_EQ(Result("exported"), 1u);
  ASSERT_EQ(collector.requests().size(), 1u);
  EXPECT_EQ(collector.requests()[0].resource_spans(0).scope_spans(0).spans(0).name(), "b");
  // A connection that is no longer trusted is not used again.
  trust(other);
  exporter.Add(Named("c"));
  ASSERT_TRUE(Eventually([&] { return Result("failed") == 2; }));
  EXPECT_EQ(collector.requests().size(), 1u);
  std::filesystem::remove(ca);
}

TEST_F(SpanExporterTest, ACollectorThatIsAwayCostsNothingButTheSpans) {
  SpanExporter exporter(OptionsFor("127.0.0.1:1"), log_);
  exporter.Add(Named("s"));
  EXPECT_TRUE(Eventually([&] { return Result("failed") == 1; }));
}

}  // namespace
}  // namespace orcd
