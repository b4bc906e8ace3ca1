// Liveness on its own port is answered whatever clients ask for.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr size_t kPromptBytes = 4'000'000;

// Callers send prompts that take a second to encode, or that fit into no context.
class LivenessTest : public WorkerTest, public ::testing::WithParamInterface<int> {
 protected:
  // Durations of liveness probes while `callers` send requests, in ascending order.
  std::vector<absl::Duration> Probe(int callers) {
    v1::TokenizeRequest tokenize;
    v1::GenerateRequest generate;
    // The tokenizer encodes words one by one.
    std::string text;
    while (text.size() < kPromptBytes) text += "many words ";
    tokenize.mutable_text()->set_text(text);
    generate.mutable_text()->set_text(text);
    std::atomic<int> left = callers;
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i) {
      threads.emplace_back([&, i] {
        grpc::ClientContext context;
        SetTimeout(context, Bound(absl::Minutes(2)));
        if (i % 4 == 0) {
          v1::GenerateResponse response;
          auto reader = stub().Generate(&context, generate);
          while (reader->Read(&response)) {
          }
          EXPECT_FALSE(reader->Finish().ok());
        } else {
          v1::TokenizeResponse response;
          // More callers may ask than the worker lets wait.
          const RpcError error = DecodeError(stub().Tokenize(&context, tokenize, &response));
          EXPECT_TRUE(error.ok() || IsError(error, grpc::StatusCode::RESOURCE_EXHAUSTED)) << error;
        }
        --left;
      });
    }
    const auto health = Health::NewStub(
        grpc::CreateChannel(worker().SideAddress("health"), grpc::InsecureChannelCredentials()));
    std::vector<absl::Duration> times;
    while (left > 0 || times.empty()) {
      grpc::ClientContext context;
      SetTimeout(context, Bound(absl::Seconds(30)));
      HealthCheckRequest request;
      request.set_service("liveness");
      HealthCheckResponse response;
      const absl::Time begin = absl::Now();
      EXPECT_TRUE(DecodeError(health->Check(&context, request, &response)).ok());
      times.push_back(absl::Now() - begin);
      EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
      absl::SleepFor(absl::Milliseconds(20));
    }
    for (std::thread& thread : threads) thread.join();
    std::sort(times.begin(), times.end());
    return times;
  }
};

TEST_P(LivenessTest, IsAnsweredWhateverIsAsked) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--health-listen", "127.0.0.1:0"}));
  const std::vector<absl::Duration> times = Probe(GetParam());
  RecordProperty("probes", static_cast<int>(times.size()));
  RecordProperty("longest_ms", static_cast<int>(absl::ToInt64Milliseconds(times.back())));
  // The callers share the machine's cores with the worker, so a few probes wait for a core.
  EXPECT_LT(times[times.size() / 2], Bound(absl::Milliseconds(50)));
  EXPECT_LT(times.back(), Bound(absl::Seconds(1)));
}

INSTANTIATE_TEST_SUITE_P(Callers, LivenessTest, ::testing::Values(16, 64));

}  // namespace
}  // namespace orcd::testing
