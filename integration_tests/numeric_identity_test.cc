// The numeric identity of a worker's backend: it is told everywhere, and tokens that were drawn
// under another one are not gone on with unless the request says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "integration_tests/http_get.h"
#include "integration_tests/many_call.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class NumericIdentityTest : public WorkerTest {
 protected:
  static v1::GenerateRequest Request() {
    v1::GenerateRequest request = TokenRequest({40, 41, 42}, 12);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stop()->set_ignore_eog(true);
    return request;
  }
  // The request, resumed after the first 5 of `whole`.
  static v1::GenerateRequest Resumed(const Generation& whole, const std::string& identity) {
    v1::GenerateRequest request = Request();
    for (int i = 0; i < 5; ++i) request.add_resume_token_ids(whole.ids.at(i));
    request.set_resume_numeric_identity(identity);
    return request;
  }
};

TEST_F(NumericIdentityTest, IsToldEverywhere) {
  for (const std::string backend : {"cpu", "null"}) {
    SCOPED_TRACE(backend);
    ASSERT_NO_FATAL_FAILURE(StartWorker({"--backend", backend, "--metrics-listen", "127.0.0.1:0"}));
    const std::string identity = client().Status().device().numeric_identity();
    EXPECT_THAT(identity, StartsWith(backend)) << "before a model is loaded";
    EXPECT_THAT(worker().Log(), HasSubstr(identity));
    const LoadResult load = client().Load("nano.gguf");
    ASSERT_TRUE(load.error.ok()) << load.error;
    EXPECT_EQ(load.loaded->numeric_identity(), identity);
    const v1::WorkerStatus status = client().Status();
    EXPECT_EQ(status.model().numeric_identity(), identity);
    EXPECT_EQ(status.device().numeric_identity(), identity);
    EXPECT_FALSE(status.device().has_gpu());
    const Generation generation = client().Generate(Request());
    ASSERT_TRUE(IsComplete(generation)) << generation.error;
    EXPECT_EQ(generation.started->numeric_identity(), identity);
    ManyCall call(stub());
    v1::GenerateRequest request = Request();
    request.set_request_id("r");
    ASSERT_TRUE(call.Generate(request));
    ASSERT_TRUE(call.ReadUntilEnd("r"));
    EXPECT_EQ(call.by_id()["r"].started->numeric_identity(), identity);
    call.CloseRequests();
    EXPECT_TRUE(call.Finish().ok());
    EXPECT_THAT(HttpGet(worker().SideAddress("metrics"), "/metrics"),
                HasSubstr("numeric_identity=\"" + identity + "\""));
    StopWorker();
  }
}

TEST_F(NumericIdentityTest, AResumeUnderAnotherIsRefusedUnlessItIsAllowed) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--backend", "null"}));
  const Generation whole = client().Generate(Request());
  ASSERT_TRUE(IsComplete(whole)) << whole.error;
  const std::vector<uint32_t> rest(whole.ids.begin() + 5, whole.ids.end());

  for (const char* same : {"null", ""}) {
    const Generation resumed = client().Generate(Resumed(whole, same));
    ASSERT_TRUE(IsComplete(resumed)) << resumed.error;
    EXPECT_EQ(resumed.ids, rest);
  }
  v1::GenerateRequest other = Resumed(whole, "portable-80");
  const Generation refused = client().Generate(other);
  EXPECT_TRUE(IsError(refused.error, StatusCode::FAILED_PRECONDITION, "NUMERIC_IDENTITY_DIFFERS"));
  EXPECT_THAT(refused.error.message, AllOf(HasSubstr("'portable-80'"), HasSubstr("'null'"),
                                           HasSubstr("resume_with_other_numerics")));
  EXPECT_TRUE(refused.error.has_precondition_failure);
  EXPECT_FALSE(refused.started.has_value());

  other.set_request_id("r");
  ManyCall call(stub());
  ASSERT_TRUE(call.Generate(other));
  ASSERT_TRUE(call.ReadUntilEnd("r"));
  EXPECT_TRUE(IsError(call.by_id()["r"].error(), StatusCode::FAILED_PRECONDITION,
                      "NUMERIC_IDENTITY_DIFFERS"));
  call.CloseRequests();
  EXPECT_TRUE(call.Finish().ok());

  other.set_resume_with_other_numerics(true);
  const Generation allowed = client().Generate(other);
  ASSERT_TRUE(IsComplete(allowed)) << allowed.error;
  EXPECT_EQ(allowed.ids, rest);

  // Nothing was drawn elsewhere.
  other.set_resume_with_other_numerics(false);
  other.clear_resume_token_ids();
  EXPECT_TRUE(IsComplete(client().Generate(other)));
}

}  // namespace
}  // namespace orcd::testing
