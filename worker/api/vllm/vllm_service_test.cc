#include "worker/api/vllm/vllm_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <future>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/eventually.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"
#include "worker/server.h"
#include "worker/stream/blocked_pool_for_test.h"
#include "worker/stream/engine_writes_for_test.h"

namespace orcd {
namespace {

class VllmServiceTest : public ::testing::Test {
 protected:
  VllmServiceTest() : host_(NullHostOptions(dir_.path())), service_(host_, log_) {
    LoadNanoModel(host_);
    server_ = EngineWrites::StartServer({&service_});
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
  }
  ~VllmServiceTest() override {
    service_.Shutdown();
    server_->Stop(absl::Seconds(5));
  }

  static vllm_wire::GenerateRequest Request() {
    vllm_wire::GenerateRequest request;
    request.set_request_id("r");
    request.mutable_tokenized()->add_input_ids(5);
    request.mutable_sampling_params()->set_max_tokens(5);
    return request;
  }

  const NanoModelDir dir_;
  const Logger log_{LogFormat::kText, LogLevel::kError};
  ModelHost host_;
  VllmService service_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// A method that the service adds fails this test until the test calls it.
TEST_F(VllmServiceTest, TheEnginesThreadWritesToNoCall) {
  auto generate = std::make_shared<vllm_wire::GenerateRequest>(Request());
  auto streamed = std::make_shared<vllm_wire::GenerateRequest>(*generate);
  streamed->set_stream(true);
  auto abort = std::make_shared<vllm_wire::AbortRequest>();
  abort->add_request_ids("r");
  ExpectNoEngineWrites(
      channel_, *vllm_wire::GenerateRequest::descriptor()->file()->service(0),
      {{"Generate", generate},
       {"Generate", streamed},
       {"HealthCheck", std::make_shared<vllm_wire::HealthCheckRequest>()},
       {"Abort", abort},
       {"GetModelInfo", std::make_shared<vllm_wire::GetModelInfoRequest>()},
       {"GetServerInfo", std::make_shared<vllm_wire::GetServerInfoRequest>()},
       {"GetLoads", std::make_shared<vllm_wire::GetLoadsRequest>()},
       {"GetTokenizer", std::make_shared<vllm_wire::GetTokenizerRequest>()},
       {"SubscribeKvEvents", std::make_shared<vllm_wire::SubscribeKvEventsRequest>(),
        /*hang_up=*/true}});
}

TEST_F(VllmServiceTest, APromptThatCannotFitIsRefusedByItsBytes) {
  const auto stub = vllm_wire::VllmEngine::NewStub(channel_);
  for (const bool stream : {false, true}) {
    vllm_wire::GenerateRequest request;
    request.set_stream(stream);
    request.set_text(std::string(4'000'000, 'a'));
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, request);
    vllm_wire::GenerateResponse response;
    EXPECT_FALSE(reader->Read(&response));
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    // A prompt that was encoded has a known number of tokens.
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr("tokens or more"));
  }
}

TEST_F(VllmServiceTest, AbortFindsWhatNobodyHasReadYet) {
  BlockedPool blocked(host_.threads().work);
  const auto stub = vllm_wire::VllmEngine::NewStub(channel_);
  std::future<grpc::Status> generated = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, Request());
    vllm_wire::GenerateResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return reader->Finish();
  });
  EXPECT_TRUE(Eventually([&] { return host_.threads().unread.ids() == 1; }));
  grpc::ClientContext context;
  vllm_wire::AbortRequest abort;
  abort.add_request_ids("other");
  abort.add_request_ids("r");
  vllm_wire::AbortResponse aborted;
  EXPECT_TRUE(stub->Abort(&context, abort, &aborted).ok());
  blocked.Release();
  EXPECT_EQ(generated.get().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace orcd
