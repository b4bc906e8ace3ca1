#include "worker/api/orcd/worker_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/cpu/cpu_backend.h"
#include "testing/event.h"
#include "worker/api/health/health_service.h"
#include "worker/host/nano_model_for_test.h"
#include "worker/server.h"
#include "worker/stream/engine_writes_for_test.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

ModelHostOptions Options(const std::string& model_dir) {
  ModelHostOptions options;
  options.model_dir = model_dir;
  options.load.backend.kv_cache_bytes = 16 << 20;
  options.load.backend.threads = 1;
  options.backend.make = CreateCpuBackend;
  options.drain_timeout = absl::Seconds(10);
  return options;
}

class WorkerServiceTest : public ::testing::Test {
 protected:
  WorkerServiceTest() : host_(Options(dir_.path())), service_(host_, log_) {
    server_ = EngineWrites::StartServer({&service_});
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = v1::Worker::NewStub(channel_);
  }
  ~WorkerServiceTest() override { server_->Stop(absl::Seconds(5)); }

  grpc::Status Load(v1::ModelDescription* loaded = nullptr) {
    grpc::ClientContext context;
    v1::LoadRequest request;
    request.set_model("nano.gguf");
    auto reader = stub_->Load(&context, request);
    v1::LoadResponse response;
    while (reader->Read(&response)) {
    }
    if (loaded != nullptr) *loaded = response.loaded();
    return reader->Finish();
  }

  // Calls a method with bytes that need not be a message.
  grpc::Status CallWithBytes(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    Event done;
    grpc::Status result;
    stub.UnaryCall(&context, absl::StrCat("/orcd.v1.Worker/", method), {}, &request, &response,
                   [&](const grpc::Status& status) {
                     result = status;
                     done.Notify();
                   });
    EXPECT_TRUE(done.WaitFor(absl::Seconds(20)));
    return result;
  }

  static std::string Reason(const grpc::Status& status) {
    google::rpc::Status rpc;
    google::rpc::ErrorInfo info;
    if (!rpc.ParseFromString(status.error_details())) return "no details";
    for (const auto& any : rpc.details()) any.UnpackTo(&info);
    return info.reason();
  }

  NanoModelDir dir_;
  const Logger log_{LogFormat::kText, LogLevel::kError};
  ModelHost host_;
  WorkerService service_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

TEST_F(WorkerServiceTest, MalformedRequestsAreSaidToBe) {
  ASSERT_TRUE(Load().ok());
  // A text prompt (field 3) whose text (field 1) is not UTF-8; then a length beyond the end.
  for (const std::string& bytes :
       {std::string("\x1a\x04\x0a\x02\xc3\x28"), std::string("\x0a\x7f")}) {
    for (const char* method : {"Load", "Unload", "Generate", "Cancel", "Tokenize", "Drain"}) {
      // The other methods have no string in field 3.
      if (bytes[0] == '\x1a' && std::string(method) != "Generate") continue;
      const grpc::Status status = CallWithBytes(method, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_EQ(Reason(status), "MALFORMED_REQUEST") << method;
      EXPECT_THAT(status.error_message(), HasSubstr("UTF-8"));
    }
  }
}

TEST_F(WorkerServiceTest, GenerateToTheEnd) {
  v1::ModelDescription loaded;
  ASSERT_TRUE(Load(&loaded).ok());
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  request.mutable_stop()->set_max_tokens(7);
  request.mutable_stop()->set_ignore_eog(true);
  request.mutable_sampling()->set_seed(11);
  request.set_logprobs(2);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  std::vector<v1::GenerateResponse> responses;
  for (v1::GenerateResponse response; reader->Read(&response);) responses.push_back(response);
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_GE(responses.size(), 3u);
  EXPECT_EQ(responses.front().started().seed(), 11u);
  EXPECT_EQ(responses.front().started().prompt_tokens(), 1u);
  int tokens = 0;
  for (const auto& response : responses) {
    tokens += response.delta().token_ids_size();
    EXPECT_EQ(response.delta().token_ids_size(), response.delta().logprobs_size());
  }
  EXPECT_EQ(tokens, 7);
  EXPECT_EQ(responses.back().finished().reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(responses.back().finished().usage().generated_tokens(), 7u);
  EXPECT_EQ(responses.back().finished().model_digest(), loaded.digest());
  // Once the client has read the end, nothing holds the model any more.
  grpc::ClientContext unload_context;
  v1::UnloadResponse unloaded;
  EXPECT_TRUE(stub_->Unload(&unload_context, v1::UnloadRequest(), &unloaded).ok());
  EXPECT_EQ(unloaded.model_id(), "nano");
}

TEST_F(WorkerServiceTest, CancelNeedsAnId) {
  ASSERT_TRUE(Load().ok());
  for (const bool loaded : {true, false}) {
    if (!loaded) {
      grpc::ClientContext context;
      v1::UnloadResponse response;
      ASSERT_TRUE(stub_->Unload(&context, v1::UnloadRequest(), &response).ok());
    }
    v1::CancelRequest request;
    v1::CancelResponse response;
    grpc::ClientContext empty_context;
    EXPECT_EQ(stub_->Cancel(&empty_context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    request.set_request_id("unknown");
    grpc::ClientContext unknown_context;
    EXPECT_TRUE(stub_->Cancel(&unknown_context, request, &response).ok());
    EXPECT_FALSE(response.found());
  }
}

TEST_F(WorkerServiceTest, CancelAnswersWhenTheRequestsBlocksAreFree) {
  ASSERT_TRUE(Load().ok());
  v1::GenerateRequest request;
  request.set_request_id("r");
  request.mutable_tokens()->add_ids(5);
  request.mutable_stop()->set_ignore_eog(true);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));

  v1::CancelRequest cancel;
  cancel.set_request_id("r");
  v1::CancelResponse cancelled;
  grpc::ClientContext cancel_context;
  ASSERT_TRUE(stub_->Cancel(&cancel_context, cancel, &cancelled).ok());
  const v1::WorkerStatus status = host_.Status();
  EXPECT_EQ(status.kv_blocks().free(), status.kv_blocks().total());
  EXPECT_EQ(status.queue().running_requests(), 0u);
  while (reader->Read(&response)) {
  }
  const grpc::Status end = reader->Finish();
  // If the request was quick enough to end by itself, there was nothing to cancel.
  EXPECT_EQ(end.error_code(),
            cancelled.found() ? grpc::StatusCode::CANCELLED : grpc::StatusCode::OK);
}

TEST_F(WorkerServiceTest, DeadlinesEndRequests) {
  ASSERT_TRUE(Load().ok());
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  // Without this it might end before anybody checks the clock; with it, it runs for hundreds of
  // tokens.
  request.mutable_stop()->set_ignore_eog(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now());
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(WorkerServiceTest, DrainStreamsUntilItIsSafe) {
  ASSERT_TRUE(Load().ok());
  v1::DrainRequest request;
  request.mutable_timeout()->set_seconds(-1);
  v1::DrainResponse response;
  grpc::ClientContext refused_context;
  auto refused = stub_->Drain(&refused_context, request);
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(host_.Status().state(), v1::WORKER_STATE_READY);

  request.mutable_timeout()->set_seconds(0);
  grpc::ClientContext context;
  auto reader = stub_->Drain(&context, request);
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(response.safe_to_delete());
  EXPECT_EQ(host_.Status().state(), v1::WORKER_STATE_DRAINED);
}

TEST_F(WorkerServiceTest, OversizedRequestsAreRefused) {
  v1::TokenizeRequest request;
  request.mutable_text()->set_text(std::string(5 << 20, 'x'));
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Tokenize(&context, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(WorkerServiceTest, MoreTokensThanAClientTakesAreRefused) {
  ASSERT_TRUE(Load().ok());
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  // Each byte of this text becomes two bytes of token ids.
  for (int i = 0; i < 2'200'000; ++i) {
    request.mutable_text()->mutable_text()->push_back("\x01\x02"[i % 2]);
  }
  grpc::ClientContext context;
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Reason(status), "OUTPUT_TOO_LARGE");
  EXPECT_THAT(status.error_message(), HasSubstr("4194304"));
  request.mutable_text()->mutable_text()->resize(200'000);
  grpc::ClientContext again;
  EXPECT_TRUE(stub_->Tokenize(&again, request, &response).ok());
  EXPECT_GT(response.token_ids_size(), 0);
}

TEST_F(WorkerServiceTest, APromptThatCannotFitIsRefusedByItsBytes) {
  ASSERT_TRUE(Load().ok());
  v1::GenerateRequest request;
  request.mutable_text()->set_text(std::string(4'000'000, 'a'));
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Reason(status), "PROMPT_TOO_LONG");
  EXPECT_THAT(status.error_message(), HasSubstr("tokens or more"));
}

// Fails for a new method until it is called here.
TEST_F(WorkerServiceTest, TheEnginesThreadWritesToNoCall) {
  auto load = std::make_shared<v1::LoadRequest>();
  load->set_model("nano.gguf");
  auto generate = std::make_shared<v1::GenerateRequest>();
  generate->set_request_id("r");
  generate->mutable_tokens()->add_ids(5);
  generate->mutable_stop()->set_max_tokens(7);
  auto many = std::make_shared<v1::GenerateManyRequest>();
  *many->mutable_generate() = *generate;
  auto cancel_many = std::make_shared<v1::GenerateManyRequest>();
  cancel_many->mutable_cancel()->set_request_id("r");
  auto refused = std::make_shared<v1::GenerateManyRequest>(*many);
  refused->mutable_generate()->mutable_sampling()->set_temperature(-1);
  auto cancel = std::make_shared<v1::CancelRequest>();
  cancel->set_request_id("r");
  auto tokenize = std::make_shared<v1::TokenizeRequest>();
  tokenize->mutable_text()->set_text("hello");
  ExpectNoEngineWrites(channel_, *v1::WorkerStatus::descriptor()->file()->service(0),
                       {{"Load", load},
                        {"Generate", generate},
                        {"GenerateMany", many},
                        {"GenerateMany", refused},
                        {"GenerateMany", cancel_many},
                        {"Cancel", cancel},
                        {"Tokenize", tokenize},
                        {"Health", std::make_shared<v1::HealthRequest>()},
                        {"Unload", std::make_shared<v1::UnloadRequest>()},
                        {"Drain", std::make_shared<v1::DrainRequest>()}});
}

TEST(ServerTest, ATakenPortIsAnError) {
  HealthService health;
  auto first = Server::Start({.listen = "127.0.0.1:0"}, {&health});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Server::Start({.listen = (*first)->address()}, {&health});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetails(second.status()).reason, "CANNOT_LISTEN");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
  (*first)->Stop(absl::ZeroDuration());
}

}  // namespace
}  // namespace orcd
