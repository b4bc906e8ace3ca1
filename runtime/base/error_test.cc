#include "runtime/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace orcd {
namespace {

TEST(ErrorTest, CarriesWhatItWasGiven) {
  const absl::Status status = MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                                        {.reason = "QUEUE_FULL",
                                         .field = "prompt",
                                         .subject = "queue:requests",
                                         .retry_after = absl::Milliseconds(1500)});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "the queue is full");
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.reason, "QUEUE_FULL");
  EXPECT_EQ(details.field, "prompt");
  EXPECT_EQ(details.subject, "queue:requests");
  EXPECT_EQ(details.retry_after, absl::Milliseconds(1500));
}

TEST(ErrorTest, IsTextWhateverItWasMadeOf) {
  const std::string latin1 = "d\xe9riv\xe9.gguf";
  const std::string text = "d\xEF\xBF\xBDriv\xEF\xBF\xBD.gguf";
  const absl::Status status = MakeError(absl::StatusCode::kNotFound, "no " + latin1,
                                        {.reason = "R", .field = latin1, .subject = latin1});
  EXPECT_EQ(status.message(), "no " + text);
  EXPECT_EQ(GetErrorDetails(status).field, text);
  EXPECT_EQ(GetErrorDetails(status).subject, text);
  EXPECT_EQ(Annotate(status, latin1).message(), text + ": no " + text);
  EXPECT_EQ(InvalidField(latin1, latin1).message(), text + ": " + text);
}

TEST(ErrorTest, EmptyDetailsAreNotAttached) {
  const absl::Status status = MakeError(absl::StatusCode::kInternal, "broken", {.reason = "BUG"});
  int payloads = 0;
  status.ForEachPayload([&](absl::string_view, const absl::Cord&) { ++payloads; });
  EXPECT_EQ(payloads, 1);
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.field, "");
  EXPECT_EQ(details.subject, "");
  EXPECT_FALSE(details.retry_after.has_value());
}

TEST(ErrorTest, ZeroRetryAfterIsKept) {
  const absl::Status status =
      MakeError(absl::StatusCode::kUnavailable, "now", {.retry_after = absl::ZeroDuration()});
  EXPECT_EQ(GetErrorDetails(status).retry_after, absl::ZeroDuration());
}

TEST(ErrorTest, DetailsOfAForeignStatusAreEmpty) {
  const ErrorDetails details = GetErrorDetails(absl::NotFoundError("nothing here"));
  EXPECT_EQ(details.reason, "");
  EXPECT_EQ(details.field, "");
  EXPECT_EQ(details.subject, "");
  EXPECT_FALSE(details.retry_after.has_value());
  EXPECT_EQ(GetErrorDetails(absl::OkStatus()).reason, "");
}

TEST(ErrorTest, InvalidFieldNamesTheFieldTwice) {
  const absl::Status status = InvalidField("sampling.top_p", "2 is outside (0, 1]");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "sampling.top_p: 2 is outside (0, 1]");
  EXPECT_EQ(GetErrorDetails(status).reason, "INVALID_FIELD");
  EXPECT_EQ(GetErrorDetails(status).field, "sampling.top_p");
}

TEST(ErrorTest, AnnotateKeepsCodeAndDetails) {
  const absl::Status status = Annotate(InvalidField("stop", "is wrong"), "model.gguf");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "model.gguf: stop: is wrong");
  EXPECT_EQ(GetErrorDetails(status).reason, "INVALID_FIELD");
  EXPECT_EQ(GetErrorDetails(status).field, "stop");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "model.gguf").ok());
}

TEST(ErrorTest, TextThatIsNoUtf8LosesNoMoreThanTheBadBytes) {
  const std::string bytes("\xff\0z", 3);
  const std::string text("\xEF\xBF\xBD\0z", 5);
  const absl::Status status = MakeError(absl::StatusCode::kInternal, bytes, {.subject = bytes});
  EXPECT_EQ(status.message(), text);
  EXPECT_EQ(GetErrorDetails(status).subject, text);
}

absl::Status ReturnIfError(const absl::Status& status, bool& went_on) {
  ORCD_RETURN_IF_ERROR(status);
  went_on = true;
  return absl::OkStatus();
}

TEST(ErrorMacrosTest, ReturnIfErrorReturnsOnlyErrors) {
  bool went_on = false;
  EXPECT_EQ(ReturnIfError(absl::AbortedError("no"), went_on), absl::AbortedError("no"));
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(ReturnIfError(absl::OkStatus(), went_on).ok());
  EXPECT_TRUE(went_on);
}

absl::StatusOr<int> Sum(absl::StatusOr<std::unique_ptr<int>> a, absl::StatusOr<int> b) {
  ORCD_ASSIGN_OR_RETURN(const std::unique_ptr<int> moved, std::move(a));
  int other = 0;
  ORCD_ASSIGN_OR_RETURN(other, b);
  return *moved + other;
}

TEST(ErrorMacrosTest, AssignOrReturnDeclaresAndAssigns) {
  const absl::StatusOr<int> sum = Sum(std::make_unique<int>(3), 4);
  ASSERT_TRUE(sum.ok());
  EXPECT_EQ(*sum, 7);
  EXPECT_EQ(Sum(absl::DataLossError("first"), 4).status(), absl::DataLossError("first"));
  EXPECT_EQ(Sum(std::make_unique<int>(3), absl::DataLossError("second")).status(),
            absl::DataLossError("second"));
}

}  // namespace
}  // namespace orcd
