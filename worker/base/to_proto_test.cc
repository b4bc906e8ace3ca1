#include "worker/base/to_proto.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

TEST(ToProtoTest, Durations) {
  const auto duration = ToProto(absl::Milliseconds(1500));
  EXPECT_EQ(duration.seconds(), 1);
  EXPECT_EQ(duration.nanos(), 500'000'000);
  // Both parts have the same sign.
  const auto negative = ToProto(absl::Milliseconds(-1500));
  EXPECT_EQ(negative.seconds(), -1);
  EXPECT_EQ(negative.nanos(), -500'000'000);
  EXPECT_EQ(FromProto(negative), absl::Milliseconds(-1500));
  EXPECT_EQ(ToProto(absl::InfiniteDuration()).seconds(), 315'576'000'000);
  google::protobuf::Duration beyond;
  beyond.set_seconds(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(FromProto(beyond), absl::InfiniteDuration());
}

TEST(ToProtoTest, DurationsOfRequestsAreChecked) {
  const auto read = [](int64_t seconds, int32_t nanos) {
    google::protobuf::Duration duration;
    duration.set_seconds(seconds);
    duration.set_nanos(nanos);
    return ReadDuration(duration, "timeout");
  };
  EXPECT_EQ(*read(0, 0), absl::ZeroDuration());
  EXPECT_EQ(*read(1, 999'999'999), absl::Seconds(2) - absl::Nanoseconds(1));
  EXPECT_EQ(*read(315'576'000'000, 0), absl::Seconds(315'576'000'000));
  const std::pair<int64_t, int32_t> bad[] = {{1, -5},
                                             {-1, 5},
                                             {0, 1'000'000'000},
                                             {1, 2'000'000'000},
                                             {0, std::numeric_limits<int32_t>::min()},
                                             {315'576'000'001, 0},
                                             {std::numeric_limits<int64_t>::max(), 0},
                                             {std::numeric_limits<int64_t>::min(), 0},
                                             {-1, 0},
                                             {0, -1}};
  for (const auto& [seconds, nanos] : bad) {
    const absl::StatusOr<absl::Duration> duration = read(seconds, nanos);
    EXPECT_EQ(duration.status().code(), absl::StatusCode::kInvalidArgument)
        << seconds << " s " << nanos << " ns";
    EXPECT_EQ(GetErrorDetails(duration.status()).field, "timeout");
    EXPECT_EQ(GetErrorDetails(duration.status()).reason, "INVALID_FIELD");
  }
}

TEST(ToProtoTest, OnlyAGpuIsDescribedAsOne) {
  BackendInfo backend;
  backend.name = "cpu";
  backend.device = "Xeon";
  backend.threads = 2;
  backend.numeric_identity = "cpu-fma";
  EXPECT_FALSE(DescribeDevice(backend).has_gpu());
  EXPECT_EQ(DescribeDevice(backend).kernels(), "");
  EXPECT_EQ(DescribeDevice(backend).numeric_identity(), "cpu-fma");
  backend.kernels = "portable";
  backend.gpu = GpuInfo{.uuid = "GPU-1",
                        .driver_version = "580.1",
                        .memory_total_bytes = 80,
                        .memory_free_bytes = 79};
  const v1::Device device = DescribeDevice(backend);
  EXPECT_EQ(device.gpu().uuid(), "GPU-1");
  EXPECT_EQ(device.gpu().driver_version(), "580.1");
  EXPECT_EQ(device.gpu().memory_total_bytes(), 80u);
  EXPECT_EQ(device.gpu().memory_free_bytes(), 79u);
  EXPECT_EQ(device.kernels(), "portable");
}

TEST(ToProtoTest, TheTokenThatEndedItHasItsLogprob) {
  FinishedEvent event;
  event.stop_token = 7;
  EXPECT_FALSE(ToProto(event, "d").has_matched_logprobs());
  event.stop_logprobs = SampledToken{.token = 7, .logprob = -0.5f, .top = {{7, -0.5f}, {2, -1}}};
  event.samples = {{.stop_string = "", .stop_token = 7, .stop_logprobs = event.stop_logprobs},
                   {.reason = FinishReason::kMaxTokens, .stop_string = ""}};
  const v1::GenerateFinished finished = ToProto(event, "d");
  EXPECT_EQ(finished.matched_logprobs().token_id(), 7u);
  EXPECT_EQ(finished.matched_logprobs().logprob(), -0.5f);
  EXPECT_EQ(finished.matched_logprobs().top_size(), 2);
  EXPECT_EQ(finished.samples(0).matched_logprobs().token_id(), 7u);
  EXPECT_FALSE(finished.samples(1).has_matched_logprobs());
}

TEST(ToProtoTest, TheUsageCountsGuesses) {
  FinishedEvent event;
  event.generated_tokens = 9;
  event.draft_tokens = 5;
  event.accepted_draft_tokens = 3;
  const v1::Usage usage = ToProto(event, "d").usage();
  EXPECT_EQ(usage.generated_tokens(), 9u);
  EXPECT_EQ(usage.draft_tokens(), 5u);
  EXPECT_EQ(usage.accepted_draft_tokens(), 3u);
}

TEST(ToProtoTest, SpeculationIsDescribedIfItWasAskedFor) {
  v1::ModelDescription description;
  DescribeSpeculation({}, description);
  EXPECT_FALSE(description.has_speculation());
  DescribeSpeculation({.drafter = "model", .model = "d\xe9.gguf", .bytes = 7, .warning = ""},
                      description);
  EXPECT_EQ(description.speculation().drafter(), "model");
  EXPECT_EQ(description.speculation().draft_model(), "d\xEF\xBF\xBD.gguf");
  EXPECT_EQ(description.speculation().warning(), "");
  DescribeSpeculation({.drafter = "none", .model = "", .bytes = 0, .warning = "It cannot."},
                      description);
  EXPECT_EQ(description.speculation().drafter(), "none");
  EXPECT_EQ(description.speculation().draft_model(), "");
  EXPECT_EQ(description.speculation().warning(), "It cannot.");
}

TEST(ToProtoTest, FailedRequestsHaveNoReason) {
  FinishedEvent event;
  event.reason = FinishReason::kEog;
  event.stop_token = 7;
  EXPECT_EQ(ToProto(event, "d").reason(), v1::FINISH_REASON_EOG);
  EXPECT_EQ(ToProto(event, "d").token_id(), 7u);
  event.status = absl::InternalError("x");
  EXPECT_EQ(ToProto(event, "d").reason(), v1::FINISH_REASON_UNSPECIFIED);
  EXPECT_EQ(ToProto(event, "d").matched_case(), v1::GenerateFinished::MATCHED_NOT_SET);
}

}  // namespace
}  // namespace orcd
