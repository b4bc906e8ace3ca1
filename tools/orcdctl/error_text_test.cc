#include "tools/orcdctl/error_text.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "tools/orcdctl/exit_codes.h"

namespace orcd::ctl {
namespace {

grpc::Status StatusWith(grpc::StatusCode code, const std::string& message,
                        const std::vector<const google::protobuf::Message*>& details) {
  google::rpc::Status rpc;
  rpc.set_code(code);
  rpc.set_message(message);
  for (const auto* detail : details) rpc.add_details()->PackFrom(*detail);
  return grpc::Status(code, message, rpc.SerializeAsString());
}

google::rpc::ErrorInfo Reason(const std::string& reason) {
  google::rpc::ErrorInfo info;
  info.set_domain("orcd");
  info.set_reason(reason);
  return info;
}

TEST(ErrorTextTest, AWrongFieldIsNamed) {
  const auto info = Reason("INVALID_FIELD");
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field("sampling.top_p");
  violation->set_description("sampling.top_p: 1.5 is not in (0, 1]");
  const auto status = StatusWith(grpc::StatusCode::INVALID_ARGUMENT,
                                 "sampling.top_p: 1.5 is not in (0, 1]", {&info, &bad});
  EXPECT_EQ(DescribeError(status, kExitFailed, "host:1"),
            "INVALID_ARGUMENT: sampling.top_p: 1.5 is not in (0, 1]\n"
            "  reason: INVALID_FIELD\n"
            "  field: sampling.top_p\n");
  EXPECT_EQ(ExitCodeOf(status, true), kExitFailed);
}

TEST(ErrorTextTest, ALimitComesWithTheHintToTryAgain) {
  const auto info = Reason("QUEUE_FULL");
  google::rpc::QuotaFailure quota;
  auto* violation = quota.add_violations();
  violation->set_subject("queue:requests");
  violation->set_description("256 of 256 wait");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_nanos(250'000'000);
  const auto status = StatusWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full",
                                 {&info, &quota, &retry});
  EXPECT_EQ(DescribeError(status, kExitFailed, "host:1"),
            "RESOURCE_EXHAUSTED: the queue is full\n"
            "  reason: QUEUE_FULL\n"
            "  limit: queue:requests: 256 of 256 wait\n"
            "  hint: try again in 250 ms\n");
}

TEST(ErrorTextTest, ModelsAndPreconditionsAreNamed) {
  google::rpc::ResourceInfo resource;
  resource.set_resource_type("model");
  resource.set_resource_name("nope");
  EXPECT_EQ(DescribeError(StatusWith(grpc::StatusCode::NOT_FOUND, "no such model", {&resource}),
                          kExitFailed, "host:1"),
            "NOT_FOUND: no such model\n  model: nope\n");
  google::rpc::PreconditionFailure failure;
  failure.add_violations()->set_subject("model");
  EXPECT_EQ(
      DescribeError(StatusWith(grpc::StatusCode::FAILED_PRECONDITION, "none is loaded", {&failure}),
                    kExitFailed, "host:1"),
      "FAILED_PRECONDITION: none is loaded\n  precondition: model\n");
}

TEST(ErrorTextTest, UnavailableIsUnreachableOnlyWithoutTheWorkersWord) {
  const grpc::Status refused(grpc::StatusCode::UNAVAILABLE, "connection refused");
  EXPECT_EQ(ExitCodeOf(refused, true), kExitUnreachable);
  EXPECT_EQ(DescribeError(refused, kExitUnreachable, "host:1"),
            "UNAVAILABLE: connection refused\n"
            "  hint: does a worker listen at host:1? Set --address or ORCD_ADDRESS\n");
  const auto info = Reason("DRAINING");
  const auto draining = StatusWith(grpc::StatusCode::UNAVAILABLE, "draining", {&info});
  EXPECT_EQ(ExitCodeOf(draining, true), kExitFailed);
  EXPECT_EQ(DescribeError(draining, kExitFailed, "host:1"),
            "UNAVAILABLE: draining\n  reason: DRAINING\n");

  const grpc::Status late(grpc::StatusCode::DEADLINE_EXCEEDED, "");
  EXPECT_EQ(ExitCodeOf(late, false), kExitUnreachable);
  EXPECT_EQ(ExitCodeOf(late, true), kExitFailed);
  EXPECT_EQ(ExitCodeOf(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""), true), kExitFailed);
}

TEST(ErrorTextTest, ForeignErrorsAreOneSafeLine) {
  const grpc::Status status(grpc::StatusCode::INTERNAL, "a\nb\x1b[2J", "no protobuf \xff");
  EXPECT_EQ(DescribeError(status, kExitFailed, "host:1"), "INTERNAL: a b [2J\n");
}

}  // namespace
}  // namespace orcd::ctl
