#include "worker/to_proto.h"

#include "gtest/gtest.h"

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
