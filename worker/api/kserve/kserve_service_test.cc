#include "worker/api/kserve/kserve_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/event.h"
#include "testing/eventually.h"
#include "worker/api/kserve/infer_request_for_test.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"
#include "worker/server.h"
#include "worker/stream/blocked_pool_for_test.h"
#include "worker/stream/engine_writes_for_test.h"

namespace orcd::kserve {
namespace {

using ::testing::ElementsAre;

ModelHostOptions Options(const std::string& model_dir, absl::Duration step_time) {
  ModelHostOptions options = NullHostOptions(model_dir, step_time);
  options.load.backend.max_seqs = 8;
  options.load.backend.block_tokens = 4;
  options.load.engine.max_waiting = 8;
  return options;
}

std::string Sampling(int max_tokens, int seed = 1) {
  const std::string limit =
      max_tokens > 0 ? absl::StrCat(", \"max_tokens\": ", max_tokens) : std::string();
  return absl::StrCat("{\"ignore_eos\": true, \"seed\": ", seed, limit, "}");
}

inference::ModelInferRequest WithId(inference::ModelInferRequest request, const std::string& id) {
  request.set_id(id);
  return request;
}

// A streaming request whose answers include the token ids.
inference::ModelInferRequest Streamed(const std::string& id, int max_tokens, int seed = 1) {
  inference::ModelInferRequest request =
      WithId(InferRequest("Hello", Sampling(max_tokens, seed)), id);
  AddBool(request, "stream", true);
  for (const char* output : {"text_output", "token_ids", "finish_reason"}) {
    request.add_outputs()->set_name(output);
  }
  return request;
}

// The answers to one request.
struct Received {
  std::vector<int32_t> ids;
  std::string text;
  std::string finish_reason;
  // Reason and message of the error that ended it.
  std::string error;
  std::string message;
  int answers = 0;
  int empty_answers = 0;
  bool ended = false;
};

class KserveServiceTest : public ::testing::Test {
 protected:
  explicit KserveServiceTest(absl::Duration step_time = absl::ZeroDuration(),
                             const MultiplexedCallLimits& limits = {})
      : host_(Options(dir_.path(), step_time)),
        service_(host_, log_, {.model_dir = dir_.path(), .limits = limits}) {
    LoadNanoModel(host_);
    server_ = EngineWrites::StartServer({&service_});
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = inference::GRPCInferenceService::NewStub(channel_);
  }
  ~KserveServiceTest() override { server_->Stop(absl::Seconds(5)); }

  // One ModelStreamInfer call and its messages so far.
  struct Stream {
    explicit Stream(inference::GRPCInferenceService::Stub& stub)
        : stream(stub.ModelStreamInfer(&context)) {}

    void Send(const inference::ModelInferRequest& request) { EXPECT_TRUE(stream->Write(request)); }
    // Reads one message; false at the end of the call.
    bool Read() {
      inference::ModelStreamInferResponse response;
      if (!stream->Read(&response)) return false;
      const inference::ModelInferResponse& reply = response.infer_response();
      order.push_back(reply.id());
      Received& received = by_id[reply.id()];
      EXPECT_FALSE(received.ended) << reply.id() << " went on after its end";
      received.ended = reply.parameters().at("triton_final_response").bool_param();
      if (!response.error_message().empty()) {
        EXPECT_TRUE(received.ended);
        EXPECT_EQ(reply.outputs_size(), 0);
        received.error = reply.parameters().at("error_reason").string_param();
        received.message = response.error_message();
        return true;
      }
      ++received.answers;
      if (reply.outputs().empty()) ++received.empty_answers;
      EXPECT_EQ(reply.model_name(), "nano");
      EXPECT_EQ(reply.model_version(), "1");
      for (const auto& output : reply.outputs()) {
        const auto& contents = output.contents();
        if (output.name() == "text_output") received.text += contents.bytes_contents(0);
        if (output.name() == "finish_reason") received.finish_reason = contents.bytes_contents(0);
        received.ids.insert(received.ids.end(), contents.int_contents().begin(),
                            contents.int_contents().end());
      }
      return true;
    }
    void ReadUntilEnd(const std::string& id) {
      while (!by_id[id].ended) ASSERT_TRUE(Read()) << "the call ended before " << id;
    }
    grpc::Status Finish() {
      stream->WritesDone();
      while (Read()) {
      }
      return stream->Finish();
    }

    grpc::ClientContext context;
    std::unique_ptr<
        grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>>
        stream;
    std::map<std::string, Received> by_id;
    std::vector<std::string> order;
  };

  grpc::Status Infer(const inference::ModelInferRequest& request,
                     inference::ModelInferResponse& reply) {
    grpc::ClientContext context;
    return stub_->ModelInfer(&context, request, &reply);
  }

  bool Quiet() {
    const v1::WorkerStatus status = host_.Status();
    return status.queue().running_requests() + status.queue().waiting_requests() == 0 &&
           status.kv_blocks().free() == status.kv_blocks().total();
  }

  NanoModelDir dir_;
  const Logger log_{LogFormat::kText, LogLevel::kError};
  ModelHost host_;
  KserveService service_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
};

TEST_F(KserveServiceTest, AStreamSaysWhatOneAnswerSays) {
  Stream stream(*stub_);
  for (int i = 0; i < 12; ++i) stream.Send(Streamed(absl::StrCat("r", i), 20 + i, i));
  EXPECT_TRUE(stream.Finish().ok());
  ASSERT_EQ(stream.by_id.size(), 12u);
  for (int i = 0; i < 12; ++i) {
    const Received& received = stream.by_id[absl::StrCat("r", i)];
    EXPECT_TRUE(received.ended);
    EXPECT_EQ(received.error, "");
    EXPECT_EQ(received.finish_reason, "length");
    EXPECT_EQ(received.ids.size(), 20u + i);
    inference::ModelInferRequest request = InferRequest("Hello", Sampling(20 + i, i));
    AddBool(request, "exclude_input_in_output", true);
    for (const char* output : {"text_output", "token_ids"}) request.add_outputs()->set_name(output);
    inference::ModelInferResponse alone;
    ASSERT_TRUE(Infer(request, alone).ok());
    EXPECT_EQ(alone.outputs(0).contents().bytes_contents(0), received.text);
    EXPECT_THAT(alone.outputs(1).contents().int_contents(),
                ::testing::ElementsAreArray(received.ids));
  }
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

// Ids of KServe are not unique, so that a cancel of another protocol does not mean them.
TEST_F(KserveServiceTest, NobodyFindsARequestByAnIdOfKserve) {
  BlockedPool blocked(host_.threads().work);
  Stream stream(*stub_);
  stream.Send(Streamed("streamed", 3));
  std::future<grpc::Status> alone = std::async(std::launch::async, [&] {
    inference::ModelInferResponse reply;
    return Infer(WithId(InferRequest("Hello", Sampling(3)), "alone"), reply);
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(host_.threads().unread.Cancel("streamed"));
    EXPECT_FALSE(host_.threads().unread.Cancel("alone"));
    absl::SleepFor(absl::Milliseconds(2));
  }
  blocked.Release();
  EXPECT_TRUE(alone.get().ok());
  stream.ReadUntilEnd("streamed");
  EXPECT_EQ(stream.by_id["streamed"].error, "");
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(KserveServiceTest, RawIsAnsweredRaw) {
  inference::ModelInferRequest request = InferRequest("Hello", Sampling(3));
  AddBool(request, "return_num_input_tokens", true);
  AddBool(request, "return_num_output_tokens", true);
  AddBool(request, "return_finish_reason", true);
  inference::ModelInferResponse typed;
  inference::ModelInferResponse raw;
  ASSERT_TRUE(Infer(request, typed).ok());
  ASSERT_TRUE(Infer(Raw(request), raw).ok());
  EXPECT_EQ(typed.raw_output_contents_size(), 0);
  ASSERT_EQ(raw.raw_output_contents_size(), 4);
  ASSERT_EQ(typed.outputs_size(), 4);
  EXPECT_EQ(raw.raw_output_contents(0).substr(4), typed.outputs(0).contents().bytes_contents(0));
  EXPECT_THAT(typed.outputs(0).contents().bytes_contents(0), ::testing::StartsWith("Hello"));
  EXPECT_EQ(typed.outputs(1).contents().bytes_contents(0), "length");
  EXPECT_GT(typed.outputs(2).contents().uint_contents(0), 0u);
  EXPECT_EQ(typed.outputs(3).contents().uint_contents(0), 3u);
  EXPECT_FALSE(raw.outputs(0).has_contents());
}

TEST_F(KserveServiceTest, ARefusedRequestEndsAloneWithItsReason) {
  Stream stream(*stub_);
  stream.Send(Streamed("good", 30));
  stream.Send(WithId(InferRequest("a", R"({"temperature": -1})"), "hot"));
  inference::ModelInferRequest unknown = WithId(InferRequest("a"), "unknown");
  unknown.set_model_name("gpt-5");
  stream.Send(unknown);
  stream.Send(inference::ModelInferRequest());
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.by_id["hot"].error, "INVALID_FIELD");
  EXPECT_EQ(stream.by_id["unknown"].error, "MODEL_NOT_FOUND");
  EXPECT_EQ(stream.by_id[""].error, "INVALID_FIELD");
  EXPECT_EQ(stream.by_id["good"].ids.size(), 30u);
}

TEST_F(KserveServiceTest, APromptThatCannotFitIsRefusedByItsBytes) {
  const inference::ModelInferRequest request =
      WithId(InferRequest(std::string(4'000'000, 'a')), "r");
  // A prompt that was encoded has a known number of tokens.
  const auto by_bytes = ::testing::HasSubstr("tokens or more");
  inference::ModelInferResponse reply;
  const grpc::Status status = Infer(request, reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), by_bytes);
  Stream stream(*stub_);
  stream.Send(request);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.by_id["r"].error, "PROMPT_TOO_LONG");
  EXPECT_THAT(stream.by_id["r"].message, by_bytes);
}

TEST_F(KserveServiceTest, AnEmptyLastAnswerComesWhereItIsAskedFor) {
  Stream stream(*stub_);
  inference::ModelInferRequest request = Streamed("streamed", 5);
  (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  stream.Send(request);
  inference::ModelInferRequest at_once = WithId(InferRequest("a", Sampling(5)), "at once");
  (*at_once.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  stream.Send(at_once);
  stream.Send(WithId(InferRequest("a", Sampling(5)), "plain"));
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.by_id["streamed"].empty_answers, 1);
  EXPECT_EQ(stream.by_id["streamed"].finish_reason, "length");
  EXPECT_EQ(stream.by_id["at once"].empty_answers, 1);
  EXPECT_EQ(stream.by_id["at once"].answers, 2);
  EXPECT_EQ(stream.by_id["plain"].empty_answers, 0);
  EXPECT_EQ(stream.by_id["plain"].answers, 1);
}

TEST_F(KserveServiceTest, BytesThatAreNoRequestEndTheStream) {
  grpc::GenericStub generic(channel_);
  for (const char* method : {"ModelStreamInfer", "ModelInfer", "ServerLive", "ServerReady",
                             "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig",
                             "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"}) {
    grpc::ClientContext context;
    const grpc::Slice slice("\x0a\x7f");
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    Event done;
    grpc::Status result;
    generic.UnaryCall(&context, absl::StrCat("/inference.GRPCInferenceService/", method), {},
                      &request, &response, [&](const grpc::Status& status) {
                        result = status;
                        done.Notify();
                      });
    ASSERT_TRUE(done.WaitFor(absl::Seconds(20)));
    EXPECT_EQ(result.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
  }
}

TEST_F(KserveServiceTest, AFileMayHaveAnyName) {
  std::ofstream(dir_.path() + "/\xff.gguf") << "";
  grpc::ClientContext context;
  inference::RepositoryIndexResponse response;
  const grpc::Status status =
      stub_->RepositoryIndex(&context, inference::RepositoryIndexRequest(), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.models_size(), 2);
  EXPECT_EQ(response.models(1).name(), "\xEF\xBF\xBD");
  inference::RepositoryIndexResponse again;
  EXPECT_TRUE(again.ParseFromString(response.SerializeAsString()));
}

TEST_F(KserveServiceTest, ALoadOfTheLoadedModelLoadsWhatItsFileHoldsNow) {
  const std::string before = host_.Status().model().digest();
  dir_.Write("new", 2);
  std::filesystem::rename(dir_.path() + "/new", dir_.path() + "/nano.gguf");
  const auto load = [&](std::optional<bool> replace) {
    grpc::ClientContext context;
    inference::RepositoryModelLoadRequest request;
    request.set_model_name("nano");
    if (replace) (*request.mutable_parameters())["replace"].set_bool_param(*replace);
    inference::RepositoryModelLoadResponse response;
    return stub_->RepositoryModelLoad(&context, request, &response).error_code();
  };
  EXPECT_EQ(load(false), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(host_.Status().model().digest(), before);
  EXPECT_EQ(load(std::nullopt), grpc::StatusCode::OK);
  EXPECT_NE(host_.Status().model().digest(), before);
}

TEST_F(KserveServiceTest, TheRepositoryLoadsAndUnloads) {
  dir_.Write("other.gguf", 2);
  std::ofstream(dir_.path() + "/big-00002-of-00003.gguf") << "";
  const auto index = [&](bool ready) {
    grpc::ClientContext context;
    inference::RepositoryIndexRequest request;
    request.set_ready(ready);
    inference::RepositoryIndexResponse response;
    EXPECT_TRUE(stub_->RepositoryIndex(&context, request, &response).ok());
    std::vector<std::string> models;
    for (const auto& model : response.models()) {
      models.push_back(absl::StrCat(model.name(), " ", model.state()));
    }
    return models;
  };
  EXPECT_THAT(index(false), ElementsAre("nano READY", "other UNAVAILABLE"));
  EXPECT_THAT(index(true), ElementsAre("nano READY"));

  const auto ready = [&](const std::string& name, grpc::StatusCode code) {
    grpc::ClientContext context;
    inference::ModelReadyRequest request;
    request.set_name(name);
    inference::ModelReadyResponse response;
    EXPECT_EQ(stub_->ModelReady(&context, request, &response).error_code(), code);
    return response.ready();
  };
  EXPECT_TRUE(ready("nano", grpc::StatusCode::OK));
  EXPECT_FALSE(ready("other", grpc::StatusCode::OK));
  EXPECT_FALSE(ready("gpt-5", grpc::StatusCode::NOT_FOUND));

  const auto load = [&](const std::string& name, bool replace) {
    grpc::ClientContext context;
    inference::RepositoryModelLoadRequest request;
    request.set_model_name(name);
    (*request.mutable_parameters())["replace"].set_bool_param(replace);
    inference::RepositoryModelLoadResponse response;
    const grpc::Status status = stub_->RepositoryModelLoad(&context, request, &response);
    EXPECT_EQ(response.isloaded(), status.ok());
    return status.error_code();
  };
  EXPECT_EQ(load("nano", false), grpc::StatusCode::OK);
  EXPECT_EQ(load("other", false), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(load("none", true), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(load("../nano", true), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(load("", true), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(load("other", true), grpc::StatusCode::OK);
  EXPECT_TRUE(ready("other", grpc::StatusCode::OK));

  // KServe's protocol has the model's name in the first field.
  const auto unload = [&](const std::string& name) {
    grpc::ClientContext context;
    inference::RepositoryModelUnloadRequest request;
    request.set_repository_name(name);
    inference::RepositoryModelUnloadResponse response;
    return stub_->RepositoryModelUnload(&context, request, &response).error_code();
  };
  EXPECT_EQ(unload("nano"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(unload("other"), grpc::StatusCode::OK);
  EXPECT_FALSE(ready("other", grpc::StatusCode::OK));
  inference::ModelInferResponse reply;
  EXPECT_EQ(Infer(InferRequest("a"), reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// An operator's load is accepted however many status calls are pending, and gRPC's thread does not
// wait for the disk.
TEST_F(KserveServiceTest, ALoadWaitsForTheDiskBehindCallsOfStatus) {
  const auto release = std::make_shared<Event>();
  const auto hang = [release] { EXPECT_TRUE(release->WaitFor(absl::Seconds(20))); };
  WorkPool& disk = host_.threads().disk;
  while (disk.Post(0, hang).ok()) {
  }
  inference::RepositoryModelLoadRequest request;
  request.set_model_name("nano");
  (*request.mutable_parameters())["unheard of"].set_bool_param(true);
  auto answer = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    inference::RepositoryModelLoadResponse response;
    return stub_->RepositoryModelLoad(&context, request, &response).error_code();
  });
  EXPECT_EQ(answer.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  release->Notify();
  EXPECT_EQ(answer.get(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(KserveServiceTest, DescribesItsTensors) {
  grpc::ClientContext context;
  inference::ModelMetadataRequest request;
  request.set_name("nano");
  inference::ModelMetadataResponse metadata;
  ASSERT_TRUE(stub_->ModelMetadata(&context, request, &metadata).ok());
  EXPECT_EQ(metadata.inputs(0).name(), "text_input");
  EXPECT_EQ(metadata.outputs(0).name(), "text_output");
  EXPECT_THAT(metadata.versions(), ElementsAre("1"));

  grpc::ClientContext config_context;
  inference::ModelConfigRequest config_request;
  config_request.set_name("nano");
  inference::ModelConfigResponse config;
  ASSERT_TRUE(stub_->ModelConfig(&config_context, config_request, &config).ok());
  EXPECT_TRUE(config.config().model_transaction_policy().decoupled());
  EXPECT_EQ(config.config().input_size(), metadata.inputs_size());
  EXPECT_FALSE(config.config().input(0).optional());
}

class SlowKserveServiceTest : public KserveServiceTest {
 protected:
  SlowKserveServiceTest() : KserveServiceTest(absl::Milliseconds(2)) {}
};

TEST_F(SlowKserveServiceTest, AnswersToSeveralRequestsInterleave) {
  Stream stream(*stub_);
  stream.Send(Streamed("a", 40));
  stream.Send(Streamed("b", 40));
  EXPECT_TRUE(stream.Finish().ok());
  int changes = 0;
  for (size_t i = 1; i < stream.order.size(); ++i)
    changes += stream.order[i] != stream.order[i - 1];
  EXPECT_GT(changes, 3);
}

TEST_F(SlowKserveServiceTest, HangingUpFreesEverything) {
  Stream stream(*stub_);
  for (int i = 0; i < 12; ++i) stream.Send(Streamed(absl::StrCat("r", i), 0));
  while (stream.by_id["r3"].ids.empty()) ASSERT_TRUE(stream.Read());
  stream.context.TryCancel();
  while (stream.Read()) {
  }
  EXPECT_EQ(stream.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

TEST_F(SlowKserveServiceTest, AClientOfOneAnswerThatLeavesFreesEverything) {
  grpc::ClientContext context;
  const inference::ModelInferRequest request = InferRequest("Hello", Sampling(0));
  inference::ModelInferResponse reply;
  Event done;
  grpc::Status result;
  stub_->async()->ModelInfer(&context, &request, &reply, [&](const grpc::Status& status) {
    result = status;
    done.Notify();
  });
  ASSERT_TRUE(Eventually([&] { return host_.Status().queue().running_requests() == 1; }));
  context.TryCancel();
  ASSERT_TRUE(done.WaitFor(absl::Seconds(20)));
  EXPECT_EQ(result.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

TEST_F(SlowKserveServiceTest, ATimeoutEndsOneRequest) {
  Stream stream(*stub_);
  inference::ModelInferRequest late = Streamed("late", 0);
  (*late.mutable_parameters())["timeout"].set_int64_param(60'000);
  stream.Send(late);
  stream.Send(Streamed("other", 60));
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.by_id["late"].error, "DEADLINE_EXCEEDED");
  EXPECT_EQ(stream.by_id["other"].ids.size(), 60u);
}

TEST_F(SlowKserveServiceTest, ShutdownWaitsForTheRequestsAndThenEndsTheCall) {
  Stream stream(*stub_);
  stream.Send(Streamed("last", 50));
  while (stream.by_id["last"].ids.empty()) ASSERT_TRUE(stream.Read());
  service_.Shutdown();
  while (stream.Read()) {
  }
  EXPECT_EQ(stream.stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(stream.by_id["last"].ids.size(), 50u);
}

// A method that the service adds fails this test until the test calls it.
TEST_F(KserveServiceTest, TheEnginesThreadWritesToNoCall) {
  auto infer = std::make_shared<inference::ModelInferRequest>(InferRequest("Hello", Sampling(5)));
  auto streamed = std::make_shared<inference::ModelInferRequest>(Streamed("s", 5));
  auto ready = std::make_shared<inference::ModelReadyRequest>();
  ready->set_name("nano");
  auto metadata = std::make_shared<inference::ModelMetadataRequest>();
  metadata->set_name("nano");
  auto config = std::make_shared<inference::ModelConfigRequest>();
  config->set_name("nano");
  auto load = std::make_shared<inference::RepositoryModelLoadRequest>();
  load->set_model_name("nano");
  auto unload = std::make_shared<inference::RepositoryModelUnloadRequest>();
  unload->set_model_name("nano");
  ExpectNoEngineWrites(channel_, *inference::ModelInferRequest::descriptor()->file()->service(0),
                       {{"ServerLive", std::make_shared<inference::ServerLiveRequest>()},
                        {"ServerReady", std::make_shared<inference::ServerReadyRequest>()},
                        {"ServerMetadata", std::make_shared<inference::ServerMetadataRequest>()},
                        {"ModelReady", ready},
                        {"ModelMetadata", metadata},
                        {"ModelConfig", config},
                        {"ModelInfer", infer},
                        {"ModelStreamInfer", streamed},
                        {"ModelStreamInfer", infer},
                        {"RepositoryIndex", std::make_shared<inference::RepositoryIndexRequest>()},
                        {"RepositoryModelLoad", load},
                        {"RepositoryModelUnload", unload}});
}

class HeldKserveTest : public KserveServiceTest {
 protected:
  HeldKserveTest()
      : KserveServiceTest(absl::Milliseconds(2), {.max_pending_bytes = 200 << 10,
                                                  .max_message_bytes = 8 << 10,
                                                  .max_held_bytes = 1 << 10}) {}

  static inference::ModelInferRequest Echoed(const std::string& id, size_t bytes, int max_tokens) {
    return WithId(InferRequest(std::string(bytes, 'a'), Sampling(max_tokens)), id);
  }
};

TEST_F(HeldKserveTest, AnEchoCountsTowardsWhatIsHeldAndEndsItsRequestAlone) {
  Stream stream(*stub_);
  stream.Send(Echoed("large", 1500, 5));
  stream.Send(Echoed("small", 100, 5));
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.by_id["large"].error, "OUTPUT_TOO_LARGE");
  EXPECT_EQ(stream.by_id["small"].error, "");
  EXPECT_TRUE(stream.by_id["small"].text.starts_with(std::string(100, 'a')));
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

// 300 ids alone take more than max_held_bytes.
TEST_F(HeldKserveTest, OutputCountsTowardsWhatIsHeldAndEndsItsRequestAlone) {
  Stream stream(*stub_);
  stream.Send(Echoed("large", 1, 300));
  stream.Send(Streamed("streamed", 300));
  stream.Send(Echoed("small", 1, 5));
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.by_id["large"].error, "OUTPUT_TOO_LARGE");
  EXPECT_EQ(stream.by_id["large"].answers, 0);
  EXPECT_EQ(stream.by_id["streamed"].error, "");
  EXPECT_EQ(stream.by_id["streamed"].ids.size(), 300u);
  EXPECT_EQ(stream.by_id["small"].error, "");
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

// The limit of all requests together holds the output of one of them, and not that of two.
class HeldTogetherKserveTest : public KserveServiceTest {
 protected:
  static constexpr int kTokens = 500;

  HeldTogetherKserveTest()
      : KserveServiceTest(absl::Milliseconds(1),
                          {.max_pending_bytes = 4 << 10, .max_message_bytes = 8 << 10}) {}
};

TEST_F(HeldTogetherKserveTest, TheOutputsOfSeveralRequestsAreOneSum) {
  Stream stream(*stub_);
  const auto send = [&](const std::string& id) {
    stream.Send(WithId(InferRequest("a", Sampling(kTokens)), id));
  };
  constexpr int kTogether = 6;
  for (int i = 0; i < kTogether; ++i) send(absl::StrCat("r", i));
  int refused = 0;
  for (int i = 0; i < kTogether; ++i) {
    const std::string id = absl::StrCat("r", i);
    ASSERT_NO_FATAL_FAILURE(stream.ReadUntilEnd(id));
    const Received& received = stream.by_id[id];
    if (received.error.empty()) continue;
    EXPECT_EQ(received.error, "OUTPUT_TOO_LARGE");
    ++refused;
  }
  EXPECT_GE(refused, 1);
  EXPECT_LT(refused, kTogether) << "the last has room for itself";
  // The output that was dropped counts no longer.
  send("alone");
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.by_id["alone"].error, "");
  EXPECT_FALSE(stream.by_id["alone"].text.empty());
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

// Steps take no time and the limits are small, so unread output soon exceeds them.
class StalledKserveReaderTest : public KserveServiceTest {
 protected:
  StalledKserveReaderTest()
      : KserveServiceTest(absl::ZeroDuration(), {.max_pending_bytes = 64 << 10,
                                                 .max_message_bytes = 8 << 10,
                                                 .grace = absl::Milliseconds(300)}) {}
};

TEST_F(StalledKserveReaderTest, IsBoundedAndThenCancelledAlone) {
  Stream stalled(*stub_);
  for (int i = 0; i < 5000; ++i) {
    inference::ModelInferRequest request = Streamed(absl::StrCat("stalled", i), 0);
    // The call may end before the last request is written.
    if (!stalled.stream->Write(request)) break;
  }
  EXPECT_TRUE(
      Eventually([&] { return host_.Status().queue().finished_requests() > 0 && Quiet(); }));
  inference::ModelInferResponse reply;
  EXPECT_TRUE(Infer(InferRequest("a", Sampling(3)), reply).ok());
  stalled.context.TryCancel();
  while (stalled.Read()) {
  }
  EXPECT_FALSE(stalled.stream->Finish().ok());
}

}  // namespace
}  // namespace orcd::kserve
