#include "worker/api/health/health_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr std::chrono::seconds kTestLimit(20);

class HealthServiceTest : public ::testing::Test {
 protected:
  HealthServiceTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    stub_ = Health::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                grpc::InsecureChannelCredentials()));
  }

  ~HealthServiceTest() override {
    health_.Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + kTestLimit);
    server_->Wait();
  }

  static HealthCheckRequest Request(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    return request;
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTestLimit);
    return stub_->Check(&context, Request(service), response);
  }

  // A Watch call as a client sees it.
  struct Watch {
    Watch(Health::Stub& stub, const std::string& service) {
      context.set_deadline(std::chrono::system_clock::now() + kTestLimit);
      reader = stub.Watch(&context, Request(service));
    }
    // Returns the next status; UNKNOWN if the stream has ended.
    HealthCheckResponse::ServingStatus Next() {
      HealthCheckResponse response;
      return reader->Read(&response) ? response.status() : HealthCheckResponse::UNKNOWN;
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader;
  };

  HealthService health_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(HealthServiceTest, CheckFollowsSetNameByName) {
  health_.Set("", true);
  health_.Set("readiness", false);
  HealthCheckResponse response;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(Check("readiness", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);

  health_.Set("readiness", true);
  ASSERT_TRUE(Check("readiness", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, CheckOfAnUnknownNameIsNotFound) {
  health_.Set("", true);
  HealthCheckResponse response;
  EXPECT_EQ(Check("nobody", &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthServiceTest, WatchSendsTheCurrentStatusThenEachChange) {
  health_.Set("readiness", false);
  Watch watch(*stub_, "readiness");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  health_.Set("readiness", true);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  // Setting the same state again, or another name, notifies nobody.
  health_.Set("readiness", true);
  health_.Set("liveness", true);
  health_.Set("readiness", false);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthServiceTest, WatchOfAnUnknownNameWaitsForItToAppear) {
  Watch watch(*stub_, "later");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  health_.Set("later", true);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, ShutdownEndsWatchesAndLaterOnesButNotCheck) {
  health_.Set("", true);
  Watch watch(*stub_, "");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  health_.Shutdown();
  EXPECT_EQ(watch.Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  Watch late(*stub_, "");
  EXPECT_EQ(late.Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(late.reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  HealthCheckResponse response;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

// A watcher that never reads holds at most one unsent message, so it does not slow Set down, and it
// finally reads the last status.
TEST_F(HealthServiceTest, ChangesAreMergedForAWatcherThatDoesNotRead) {
  Watch watch(*stub_, "flapping");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  constexpr int kChanges = 100'000;
  for (int i = 0; i <= kChanges; ++i) health_.Set("flapping", i % 2 == 0);
  health_.Set("last", true);

  int seen = 0;
  HealthCheckResponse::ServingStatus last = HealthCheckResponse::UNKNOWN;
  std::thread reader([&] {
    HealthCheckResponse response;
    while (watch.reader->Read(&response)) {
      EXPECT_NE(response.status(), last) << "a message that changes nothing";
      last = response.status();
      ++seen;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  health_.Shutdown();
  reader.join();
  EXPECT_EQ(last, HealthCheckResponse::SERVING);
  EXPECT_GE(seen, 1);
  EXPECT_LT(seen, kChanges);
}

TEST_F(HealthServiceTest, WatchersComeAndGoWhileStatusesChange) {
  health_.Set("a", true);
  std::atomic<bool> stop = false;
  std::thread setter([&] {
    for (int i = 0; !stop; ++i) {
      health_.Set("a", i % 2 == 0);
      health_.Set("b", i % 3 == 0);
    }
  });
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 25; ++i) {
        Watch watch(*stub_, c % 2 == 0 ? "a" : "b");
        for (int n = 0; n < i % 4; ++n) EXPECT_NE(watch.Next(), HealthCheckResponse::UNKNOWN);
        watch.context.TryCancel();
        EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stop = true;
  setter.join();
}

TEST_F(HealthServiceTest, TheServerStopsWithOpenWatchesAfterShutdown) {
  health_.Set("", true);
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 50; ++i) {
    watches.push_back(std::make_unique<Watch>(*stub_, ""));
    ASSERT_EQ(watches.back()->Next(), HealthCheckResponse::SERVING);
  }
  const auto start = std::chrono::steady_clock::now();
  health_.Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + kTestLimit);
  server_->Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTestLimit / 2);
}

}  // namespace
}  // namespace orcd
