// What the real model costs: time to ready, memory, speed.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <iostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "integration_tests/real_model_fixture.h"

namespace orcd::testing {
namespace {

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

using RealModelLimitsTest = RealModelTest;

TEST_F(RealModelLimitsTest, ReadyWithinTwoSecondsAndProgressAllTheWay) {
  constexpr int kTries = 3;
  WarmPageCache();
  // The best of several: the machine may have other work.
  absl::Duration best = absl::InfiniteDuration();
  absl::Duration best_gap = absl::InfiniteDuration();
  for (int i = 0; i < kTries; ++i) {
    v1::LoadRequest request;
    request.set_model(kModel);
    const LoadResult result = client().Load(request);
    ASSERT_TRUE(result.error.ok()) << result.error;
    ASSERT_TRUE(result.loaded_last);
    best = std::min(best, result.ended - result.begun);
    absl::Time last = result.begun;
    absl::Duration gap = absl::ZeroDuration();
    for (const LoadResult::Progress& progress : result.progress) {
      gap = std::max(gap, progress.arrival - last);
      last = progress.arrival;
    }
    best_gap = std::min(best_gap, std::max(gap, result.ended - last));
    EXPECT_GE(result.progress.size(), 4u);
    ASSERT_TRUE(client().Unload(false).ok());
  }
  std::cout << "ready after " << best << ", longest gap between messages " << best_gap << "\n";
  EXPECT_LT(best, absl::Seconds(2));
  // 250 ms are promised; a loaded machine may deliver a message a little late.
  EXPECT_LT(best_gap, absl::Milliseconds(300));
}

TEST_F(RealModelLimitsTest, MemoryIsTheFileAndTheKvCache) {
  ASSERT_NO_FATAL_FAILURE(Load());
  const v1::GenerateRequest request = ChatRequest("Explain how a B-tree is split.", 48);
  std::vector<std::future<Generation>> together;
  for (int i = 0; i < 4; ++i) {
    together.push_back(std::async(std::launch::async, [&] { return client().Generate(request); }));
  }
  for (auto& generation : together) ASSERT_TRUE(IsComplete(generation.get()));

  const v1::MemoryUsage usage = client().Status().memory();
  const WorkerProcess::Memory memory = worker().ReadMemory();
  const double file = static_cast<double>(model_bytes());
  const double kv = static_cast<double>(usage.kv_bytes());
  std::cout << "resident " << memory.resident / 1e6 << " MB (peak " << memory.peak / 1e6
            << ", not of files " << memory.anonymous / 1e6 << "); file " << file / 1e6 << ", KV "
            << kv / 1e6 << ", workspace " << usage.workspace_bytes() / 1e6 << "\n";
  EXPECT_LE(static_cast<double>(memory.resident), 1.2 * file + kv);
  EXPECT_LE(static_cast<double>(memory.peak), 1.2 * file + kv);
  EXPECT_NEAR(static_cast<double>(usage.process_resident_bytes()),
              static_cast<double>(memory.resident), 0.05 * static_cast<double>(memory.resident));
}

TEST_F(RealModelLimitsTest, MemoryComesBackWithUnload) {
  const int64_t idle = worker().ReadMemory().resident;
  ASSERT_NO_FATAL_FAILURE(Load());
  ASSERT_TRUE(IsComplete(client().Generate(ChatRequest("Hello", 8))));
  ASSERT_TRUE(client().Unload(false).ok());
  const int64_t after = worker().ReadMemory().resident;
  std::cout << "resident before " << idle / 1e6 << " MB, after " << after / 1e6 << " MB\n";
  EXPECT_LT(after - idle, int64_t{64} << 20);
}

TEST_F(RealModelLimitsTest, Speed) {
  ASSERT_NO_FATAL_FAILURE(Load());
  v1::TokenizeRequest tokenize;
  for (int i = 0; i < 120; ++i) {
    tokenize.mutable_text()->mutable_text()->append("The quick brown fox jumps. ");
  }
  std::vector<uint32_t> ids = client().Tokens(tokenize);
  ASSERT_GE(ids.size(), 512u);
  ids.resize(512);
  v1::GenerateRequest request = TokenRequest(ids, 1);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_ignore_eog(true);
  const Generation prefill = client().Generate(request);
  ASSERT_TRUE(IsComplete(prefill));
  const double prefill_rate =
      512 / absl::ToDoubleSeconds(ToDuration(prefill.finished->timings().prefill()));

  request = ChatRequest("Write about rivers.", 64);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_ignore_eog(true);
  const Generation decode = client().Generate(request);
  ASSERT_TRUE(IsComplete(decode));
  const double decode_rate =
      63 / absl::ToDoubleSeconds(ToDuration(decode.finished->timings().decode()));

  std::cout << "prefill " << prefill_rate << " tok/s (512 tokens), decode " << decode_rate
            << " tok/s (64 tokens, one request), " << client().Status().device().threads()
            << " threads\n";
  RecordProperty("prefill_tokens_per_second", std::to_string(prefill_rate));
  RecordProperty("decode_tokens_per_second", std::to_string(decode_rate));
  EXPECT_GT(prefill_rate, 0);
  EXPECT_GT(decode_rate, 0);
}

}  // namespace
}  // namespace orcd::testing
