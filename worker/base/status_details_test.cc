#include "worker/base/status_details.h"

#include <grpcpp/test/server_context_test_spouse.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

// Returns the detail of this type, which must occur exactly once.
template <typename Detail>
Detail Get(const google::rpc::Status& status) {
  Detail detail;
  int found = 0;
  for (const auto& any : status.details()) found += any.UnpackTo(&detail);
  EXPECT_EQ(found, 1) << Detail::descriptor()->full_name() << " in " << status.DebugString();
  return detail;
}

template <typename Detail>
bool Has(const google::rpc::Status& status) {
  for (const auto& any : status.details()) {
    if (any.Is<Detail>()) return true;
  }
  return false;
}

TEST(StatusDetailsTest, InvalidArgumentNamesTheField) {
  const google::rpc::Status rpc = ToRpcStatus(InvalidField("sampling.top_p", "1.5 is above 1"));
  EXPECT_EQ(rpc.code(), 3);
  EXPECT_EQ(rpc.message(), "sampling.top_p: 1.5 is above 1");
  EXPECT_EQ(Get<google::rpc::ErrorInfo>(rpc).reason(), "INVALID_FIELD");
  EXPECT_EQ(Get<google::rpc::ErrorInfo>(rpc).domain(), "orcd");
  const auto bad = Get<google::rpc::BadRequest>(rpc);
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(bad.field_violations(0).description(), rpc.message());
}

TEST(StatusDetailsTest, NotFoundNamesTheResource) {
  const google::rpc::Status rpc =
      ToRpcStatus(MakeError(absl::StatusCode::kNotFound, "no such file",
                            {.reason = "MODEL_NOT_FOUND", .subject = "x.gguf"}));
  EXPECT_EQ(rpc.code(), 5);
  const auto resource = Get<google::rpc::ResourceInfo>(rpc);
  EXPECT_EQ(resource.resource_type(), "model");
  EXPECT_EQ(resource.resource_name(), "x.gguf");
  EXPECT_EQ(resource.description(), "no such file");
  EXPECT_EQ(Get<google::rpc::ErrorInfo>(rpc).metadata().at("subject"), "x.gguf");
}

TEST(StatusDetailsTest, FailedPreconditionNamesIt) {
  const google::rpc::Status rpc =
      ToRpcStatus(MakeError(absl::StatusCode::kFailedPrecondition, "load one first",
                            {.reason = "MODEL_NOT_LOADED", .subject = "model"}));
  EXPECT_EQ(rpc.code(), 9);
  const auto failure = Get<google::rpc::PreconditionFailure>(rpc);
  ASSERT_EQ(failure.violations_size(), 1);
  EXPECT_EQ(failure.violations(0).type(), "MODEL_NOT_LOADED");
  EXPECT_EQ(failure.violations(0).subject(), "model");
  EXPECT_EQ(failure.violations(0).description(), "load one first");
}

TEST(StatusDetailsTest, ResourceExhaustedNamesTheQuotaAndWhenToRetry) {
  const google::rpc::Status rpc =
      ToRpcStatus(MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                            {.reason = "QUEUE_FULL",
                             .subject = "queue:requests",
                             .retry_after = absl::Milliseconds(1500)}));
  EXPECT_EQ(rpc.code(), 8);
  const auto failure = Get<google::rpc::QuotaFailure>(rpc);
  ASSERT_EQ(failure.violations_size(), 1);
  EXPECT_EQ(failure.violations(0).subject(), "queue:requests");
  EXPECT_EQ(failure.violations(0).description(), "the queue is full");
  const auto retry = Get<google::rpc::RetryInfo>(rpc);
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
}

TEST(StatusDetailsTest, ResourceExhaustedForGoodHasNoRetryInfo) {
  const google::rpc::Status rpc =
      ToRpcStatus(MakeError(absl::StatusCode::kResourceExhausted, "does not fit",
                            {.reason = "INSUFFICIENT_MEMORY", .subject = "memory"}));
  EXPECT_TRUE(Has<google::rpc::QuotaFailure>(rpc));
  EXPECT_FALSE(Has<google::rpc::RetryInfo>(rpc));
}

TEST(StatusDetailsTest, LoadingSaysWhenToRetryAndDrainingDoesNot) {
  const google::rpc::Status loading =
      ToRpcStatus(MakeError(absl::StatusCode::kUnavailable, "loading",
                            {.reason = "LOADING", .retry_after = absl::Seconds(3)}));
  EXPECT_EQ(loading.code(), 14);
  EXPECT_EQ(Get<google::rpc::RetryInfo>(loading).retry_delay().seconds(), 3);
  const google::rpc::Status draining =
      ToRpcStatus(MakeError(absl::StatusCode::kUnavailable, "draining", {.reason = "DRAINING"}));
  EXPECT_FALSE(Has<google::rpc::RetryInfo>(draining));
  EXPECT_EQ(Get<google::rpc::ErrorInfo>(draining).reason(), "DRAINING");
}

TEST(StatusDetailsTest, OtherCodesHaveErrorInfoAlone) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kAlreadyExists,
        absl::StatusCode::kInternal, absl::StatusCode::kCancelled}) {
    const google::rpc::Status rpc = ToRpcStatus(MakeError(code, "m", {.reason = "R"}));
    EXPECT_EQ(rpc.code(), static_cast<int>(code));
    EXPECT_EQ(rpc.details_size(), 1);
    EXPECT_EQ(Get<google::rpc::ErrorInfo>(rpc).reason(), "R");
  }
}

TEST(StatusDetailsTest, ReasonDefaultsToTheCodesName) {
  EXPECT_EQ(Get<google::rpc::ErrorInfo>(ToRpcStatus(absl::DataLossError("m"))).reason(),
            "DATA_LOSS");
  EXPECT_EQ(Get<google::rpc::ErrorInfo>(ToRpcStatus(absl::InvalidArgumentError("m"))).reason(),
            "INVALID_ARGUMENT");
}

TEST(StatusDetailsTest, TheGrpcStatusCarriesTheDetails) {
  const grpc::Status status = ToGrpcStatus(InvalidField("model", "is empty"), nullptr);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "model: is empty");
  google::rpc::Status rpc;
  ASSERT_TRUE(rpc.ParseFromString(status.error_details()));
  EXPECT_EQ(Get<google::rpc::BadRequest>(rpc).field_violations(0).field(), "model");
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus(), nullptr).ok());
}

TEST(StatusDetailsTest, PushbackTrailer) {
  grpc::ServerContext context;
  grpc::testing::ServerContextTestSpouse spouse(&context);
  ToGrpcStatus(InvalidField("model", "is empty"), &context);
  EXPECT_TRUE(spouse.GetTrailingMetadata().empty());
  ToGrpcStatus(MakeError(absl::StatusCode::kResourceExhausted, "full",
                         {.reason = "QUEUE_FULL", .retry_after = absl::Milliseconds(1500)}),
               &context);
  EXPECT_THAT(spouse.GetTrailingMetadata(),
              ElementsAre(::testing::Pair("grpc-retry-pushback-ms", "1500")));
}

TEST(StatusDetailsTest, LongMessagesFitATrailerAndBadBytesAreReplaced) {
  const std::string text = absl::StrCat("\xff", std::string(100'000, 'x'));
  const grpc::Status status = ToGrpcStatus(
      MakeError(absl::StatusCode::kInvalidArgument, text, {.field = text, .subject = text}),
      nullptr);
  EXPECT_LT(status.error_details().size() + status.error_message().size(), 7000u);
  google::rpc::Status rpc;
  ASSERT_TRUE(rpc.ParseFromString(status.error_details()));
  EXPECT_THAT(rpc.message(), ::testing::StartsWith("\xEF\xBF\xBDxxx"));
  EXPECT_THAT(rpc.message(), ::testing::EndsWith("…"));
}

}  // namespace
}  // namespace orcd
