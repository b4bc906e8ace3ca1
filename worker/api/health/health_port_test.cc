#include "worker/api/health/health_port.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/event.h"
#include "testing/eventually.h"

namespace orcd {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr std::chrono::seconds kTestLimit(20);

// Blocks every thread that gRPC has for callbacks.
class HoldingService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    ++held_;
    EXPECT_TRUE(release_.WaitFor(absl::Seconds(60)));
    auto* reactor = new Reactor;
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  int held() const { return held_; }
  void Release() { release_.Notify(); }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    void OnDone() override { delete this; }
  };
  std::atomic<int> held_ = 0;
  Event release_;
};

class HealthPortTest : public ::testing::Test {
 protected:
  HealthPortTest() {
    auto port = HealthPort::Start({.listen = "127.0.0.1:0"}, health_);
    EXPECT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
    stub_ =
        Health::NewStub(grpc::CreateChannel(port_->address(), grpc::InsecureChannelCredentials()));
  }

  static HealthCheckRequest Request(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    return request;
  }
  static void SetLimit(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kTestLimit);
  }
  // Returns UNKNOWN if the call fails.
  HealthCheckResponse::ServingStatus Check(const std::string& service) {
    grpc::ClientContext context;
    SetLimit(context);
    HealthCheckResponse response;
    status_ = stub_->Check(&context, Request(service), &response);
    return response.status();
  }

  HealthService health_;
  std::unique_ptr<HealthPort> port_;
  std::unique_ptr<Health::Stub> stub_;
  grpc::Status status_;
};

TEST_F(HealthPortTest, CheckSaysWhatTheServiceSays) {
  health_.Set("liveness", true);
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  health_.Set("liveness", false);
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::NOT_SERVING);
  Check("nobody");
  EXPECT_EQ(status_.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthPortTest, WatchersGetEachChangeAndTheEnd) {
  health_.Set("", false);
  grpc::ClientContext context;
  grpc::ClientContext other_context;
  SetLimit(context);
  SetLimit(other_context);
  auto watch = stub_->Watch(&context, Request(""));
  auto other = stub_->Watch(&other_context, Request("later"));
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(other->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  health_.Set("", true);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  health_.Set("later", true);
  ASSERT_TRUE(other->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  // One client goes; the other learns that the worker shuts down.
  other_context.TryCancel();
  EXPECT_FALSE(other->Read(&response));
  EXPECT_EQ(other->Finish().error_code(), grpc::StatusCode::CANCELLED);
  health_.Shutdown();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Check(""), HealthCheckResponse::SERVING);
}

TEST_F(HealthPortTest, StopsUnderOpenCallsAndFreesThePort) {
  health_.Set("", true);
  grpc::ClientContext context;
  SetLimit(context);
  auto watch = stub_->Watch(&context, Request(""));
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  const std::string address = port_->address();
  const auto taken = HealthPort::Start({.listen = address}, health_);
  EXPECT_FALSE(taken.ok());
  port_->Stop();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_FALSE(watch->Finish().ok());
  EXPECT_TRUE(HealthPort::Start({.listen = address}, health_).ok());
}

TEST_F(HealthPortTest, AnswersWhileEveryCallbackThreadIsHeldUp) {
  constexpr int kCalls = 40;
  health_.Set("liveness", true);
  HoldingService holding;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&holding);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::vector<std::thread> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.emplace_back([port] {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto stub = Health::NewStub(grpc::CreateCustomChannel(
          "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      HealthCheckResponse response;
      stub->Check(&context, Request("x"), &response);
    });
  }
  // Wait until every callback thread is blocked, which shows as a count that stops growing.
  int before = 0;
  EXPECT_TRUE(Eventually([&] {
    const int held = holding.held();
    const bool same = held > 0 && held == before;
    before = held;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return same;
  }));
  EXPECT_LT(holding.held(), kCalls) << "threads are left";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  holding.Release();
  for (std::thread& caller : callers) caller.join();
  server->Shutdown();
}

}  // namespace
}  // namespace orcd
