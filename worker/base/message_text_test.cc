#include "worker/base/message_text.h"

#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"
#include "orcd/v1/orchestrator.pb.h"

namespace orcd {
namespace {

TEST(MessageTextTest, FindsAndReplacesWhatIsNoUtf8AtAnyDepth) {
  v1::HeartbeatRequest request;
  request.set_lease_id("lease");
  request.mutable_status()->mutable_model()->set_name("d\xe9riv\xe9");
  request.add_outcomes()->set_id("fine");
  request.add_outcomes()->mutable_error()->set_message("\xff");
  EXPECT_EQ(FindInvalidText(request), "status.model.name");
  request.mutable_status()->mutable_model()->set_name("dérivé");
  EXPECT_EQ(FindInvalidText(request), "outcomes.error.message");
  request.mutable_status()->mutable_model()->set_name("d\xe9riv\xe9");
  MakeTextValid(request);
  EXPECT_EQ(FindInvalidText(request), "");
  EXPECT_EQ(request.status().model().name(), "d\xEF\xBF\xBDriv\xEF\xBF\xBD");
  EXPECT_EQ(request.outcomes(1).error().message(), "\xEF\xBF\xBD");
  EXPECT_EQ(request.outcomes(0).id(), "fine");
  EXPECT_EQ(request.lease_id(), "lease");
}

TEST(MessageTextTest, RepeatedStringsAndMaps) {
  v1::Capabilities capabilities;
  capabilities.add_services("one");
  capabilities.add_services("tw\xc3");
  EXPECT_EQ(FindInvalidText(capabilities), "services");
  MakeTextValid(capabilities);
  EXPECT_EQ(capabilities.services(0), "one");
  EXPECT_EQ(capabilities.services(1), "tw\xEF\xBF\xBD");

  google::rpc::ErrorInfo info;
  (*info.mutable_metadata())["subject"] = "\xe4.gguf";
  EXPECT_EQ(FindInvalidText(info), "metadata.value");
  MakeTextValid(info);
  EXPECT_EQ(info.metadata().at("subject"), "\xEF\xBF\xBD.gguf");
}

TEST(MessageTextTest, RepairedMessagesCanBeParsed) {
  v1::WorkerStatus status;
  status.set_reason("\x80\xe9t\xe9");
  v1::WorkerStatus read;
  EXPECT_FALSE(read.ParseFromString(status.SerializeAsString()));
  MakeTextValid(status);
  EXPECT_TRUE(read.ParseFromString(status.SerializeAsString()));
}

}  // namespace
}  // namespace orcd
