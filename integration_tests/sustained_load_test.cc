// Lasting load on a worker: thousands of streams at once, and memory that does not grow with the
// number of requests served.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/many_call.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

class SustainedLoadTest : public WorkerTest {};

TEST_F(SustainedLoadTest, TwoThousandStreamsAtOnce) {
  constexpr int kStreams = 2000;
  constexpr uint32_t kTokens = 50;
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--backend", "null", "--null-step", "50ms", "--max-seqs",
                                       absl::StrCat(kStreams), "--log-level", "warning"}));
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < kStreams; ++i) {
    v1::GenerateRequest request = EndlessRequest(absl::StrCat("stream-", i));
    request.mutable_sampling()->set_seed(i);
    calls.push_back(std::make_unique<GenerateCall>(stub(), request, absl::Seconds(120)));
  }
  for (const auto& call : calls) ASSERT_TRUE(call->ReadUntilTokens(1));
  EXPECT_EQ(client().Status().queue().running_requests(), static_cast<uint32_t>(kStreams));
  for (const auto& call : calls) ASSERT_TRUE(call->ReadUntilTokens(kTokens));
  EXPECT_EQ(client().Status().queue().running_requests(), static_cast<uint32_t>(kStreams));
  for (const auto& call : calls) call->HangUp();
  calls.clear();
  EXPECT_TRUE(client().WaitForQuiet());
}

TEST_F(SustainedLoadTest, MemoryDoesNotGrowWithRequests) {
  constexpr int kRequests = 200'000;
  constexpr int kWarmUp = 40'000;
  constexpr int kAtOnce = 200;
  constexpr int64_t kMostGrowth = 2 << 20;
  // The KV cache is so small that after a few thousand requests every block has been used and
  // reused.
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--backend", "null", "--max-seqs", "64", "--max-waiting", "256",
                   "--kv-cache-bytes", "1MiB", "--log-level", "warning"}));
  int64_t before = 0;
  int64_t most = 0;
  int sent = 0;
  while (sent < kRequests) {
    // Opens a new call now and then; no two prompts are the same.
    ManyCall call(stub());
    for (int in_call = 0; in_call < 5000; in_call += kAtOnce) {
      std::vector<std::string> ids;
      for (int i = 0; i < kAtOnce; ++i, ++sent) {
        const uint32_t n = static_cast<uint32_t>(sent);
        v1::GenerateRequest request = TokenRequest({n % 199, n / 199 % 199, n / 199 / 199, 4, 5, 6,
                                                    7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18},
                                                   4);
        request.set_request_id(absl::StrCat("r", sent));
        request.mutable_stop()->set_ignore_eog(true);
        ids.push_back(request.request_id());
        ASSERT_TRUE(call.Generate(request));
      }
      for (const std::string& id : ids) {
        ASSERT_TRUE(call.ReadUntilEnd(id));
        ASSERT_TRUE(call.by_id()[id].error().ok()) << call.by_id()[id].error();
        ASSERT_EQ(call.by_id()[id].ids[0].size(), 4u);
      }
      call.by_id().clear();
    }
    call.CloseRequests();
    ASSERT_TRUE(call.Finish().ok());
    const int64_t now = worker().ReadMemory().anonymous;
    if (sent <= kWarmUp) before = std::max(before, now);
    most = std::max(most, now);
  }
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_GE(client().Status().queue().finished_requests(), static_cast<uint64_t>(kRequests));
  EXPECT_LE(most - before, kMostGrowth)
      << "bytes after " << kRequests << " requests, " << before << " after " << kWarmUp;
  RecordProperty("bytes_after_warm_up", std::to_string(before));
  RecordProperty("bytes_at_most", std::to_string(most));
  std::cout << "anonymous memory: " << before << " bytes after " << kWarmUp << " requests, at most "
            << most << " after " << kRequests << "\n";
}

}  // namespace
}  // namespace orcd::testing
