#include "worker/stream/report_stream.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "orcd/v1/worker.grpc.pb.h"
#include "runtime/base/steady_time.h"
#include "testing/event.h"

namespace orcd {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

// A service whose Drain call reports what the test wants.
class Service final : public v1::Worker::WithRawCallbackMethod_Drain<v1::Worker::Service> {
 public:
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Drain(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer*) override {
    auto stream = std::make_shared<ReportStream>(
        context, poll, interval, [this] { cancelled.Notify(); }, patience);
    auto* const reactor = stream->Serve();
    stream->Wake();
    return reactor;
  }

  ReportStream::Poll poll;
  absl::Duration interval = absl::Milliseconds(10);
  absl::Duration patience = absl::InfiniteDuration();
  Event cancelled;
};

class ReportStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    // A client that buffers little in advance.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = v1::Worker::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
  }
  void TearDown() override {
    stub_ = nullptr;
    server_->Shutdown();
  }

  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

TEST_F(ReportStreamTest, AReportWithMoreIsFollowedAtOnce) {
  service_.interval = absl::Minutes(10);
  service_.poll = [left = 100]() mutable {
    ReportStream::Report report;
    auto message = std::make_unique<v1::DrainResponse>();
    message->set_running_requests(--left);
    report.message = std::move(message);
    report.more = left > 0;
    if (left == 0) report.end = absl::OkStatus();
    return report;
  };
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
  auto reader = stub_->Drain(&context, {});
  v1::DrainResponse response;
  uint32_t expected = 100;
  while (reader->Read(&response)) EXPECT_EQ(response.running_requests(), --expected);
  EXPECT_EQ(expected, 0u);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ReportStreamTest, AClientThatDoesNotReadIsTornDown) {
  service_.patience = absl::Milliseconds(300);
  // The stream may poll once more after this function has ended.
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  service_.poll = [gone] {
    ReportStream::Report report;
    if (*gone) {
      report.end = absl::CancelledError("gone");
      return report;
    }
    auto message = std::make_unique<v1::HealthResponse>();
    message->mutable_status()->set_reason(std::string(1 << 20, 'x'));
    report.message = std::move(message);
    report.more = true;
    return report;
  };
  const absl::Time begun = SteadyNow();
  grpc::ClientContext context;
  auto reader = stub_->Drain(&context, {});
  ASSERT_TRUE(service_.cancelled.WaitFor(kLong));
  EXPECT_GE(SteadyNow() - begun, service_.patience);
  *gone = true;
  context.TryCancel();
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(ReportStreamTest, AClientThatDoesNotReadTheLastMessageIsTornDownToo) {
  service_.patience = absl::Milliseconds(300);
  service_.poll = [] {
    ReportStream::Report report;
    auto message = std::make_unique<v1::HealthResponse>();
    message->mutable_status()->set_reason(std::string(3 << 20, 'x'));
    report.message = std::move(message);
    report.end = absl::OkStatus();
    return report;
  };
  grpc::ClientContext context;
  auto reader = stub_->Drain(&context, {});
  EXPECT_TRUE(service_.cancelled.WaitFor(kLong));
  context.TryCancel();
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace orcd
