// The Open Inference Protocol gives the same tokens and guarantees as orcd.v1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "integration_tests/http_get.h"
#include "integration_tests/infer_client.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::ElementsAre;
using Stub = inference::GRPCInferenceService::Stub;

constexpr char kEndless[] = R"({"ignore_eos": true, "seed": 1})";

class KserveTest : public WorkerTest {
 protected:
  void TearDown() override {
    // The stub holds the channel; the worker would wait for its connection.
    kserve_ = nullptr;
    kserve_channel_ = nullptr;
    WorkerTest::TearDown();
  }

  Stub& kserve() {
    if (kserve_ == nullptr || kserve_channel_ != client().channel()) {
      kserve_channel_ = client().channel();
      kserve_ = inference::GRPCInferenceService::NewStub(kserve_channel_);
    }
    return *kserve_;
  }

  static inference::ModelInferRequest Streamed(const std::string& id, const std::string& sampling) {
    inference::ModelInferRequest request = InferRequest("Once upon a time", sampling);
    request.set_id(id);
    AddBool(request, "stream", true);
    AskForTokens(request);
    return request;
  }

  bool ServerReady() {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(10));
    inference::ServerReadyResponse response;
    EXPECT_TRUE(kserve().ServerReady(&context, {}, &response).ok());
    return response.ready();
  }
  bool ServerLive() {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(10));
    inference::ServerLiveResponse response;
    EXPECT_TRUE(kserve().ServerLive(&context, {}, &response).ok());
    return response.live();
  }

 private:
  std::shared_ptr<grpc::Channel> kserve_channel_;
  std::unique_ptr<Stub> kserve_;
};

// Compares single answers and streams, typed and raw, alone and concurrent.
TEST_F(KserveTest, TheSameSeedGivesTheSameTokensAsOrcdV1) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  InferStream stream(kserve());
  for (int seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    v1::GenerateRequest ours = TextRequest("Once upon a time", 40);
    ours.mutable_sampling()->set_seed(seed);
    ours.mutable_sampling()->set_temperature(0.9f);
    ours.mutable_sampling()->set_top_k(50);
    const Generation generation = client().Generate(ours);
    ASSERT_TRUE(IsComplete(generation));
    const std::string finish =
        generation.reason() == v1::FINISH_REASON_MAX_TOKENS ? "length" : "stop";

    const std::string sampling =
        absl::StrCat(R"({"temperature": 0.9, "top_k": 50, "max_tokens": 40, "seed": )", seed, "}");
    inference::ModelInferRequest request = InferRequest("Once upon a time", sampling);
    AddBool(request, "exclude_input_in_output", true);
    AskForTokens(request);
    inference::ModelInferRequest streamed = Streamed("streamed", sampling);
    for (const bool raw : {false, true}) {
      const Inference one = Infer(kserve(), raw ? Raw(request) : request);
      ASSERT_TRUE(one.error.ok()) << one.error;
      EXPECT_EQ(one.violation, "");
      EXPECT_EQ(one.ids, generation.ids);
      EXPECT_EQ(one.text, generation.text);
      EXPECT_EQ(one.finish_reason, finish);

      for (const bool at_once : {false, true}) {
        const std::string id = absl::StrCat("s", seed, raw ? "r" : "t", at_once ? "o" : "s");
        inference::ModelInferRequest asked = at_once ? request : streamed;
        asked.set_id(id);
        ASSERT_TRUE(stream.Send(raw ? Raw(asked) : asked));
        ASSERT_TRUE(stream.ReadUntilEnd(id));
        const Inference& received = stream.by_id()[id];
        EXPECT_TRUE(received.error.ok()) << received.error;
        EXPECT_EQ(received.violation, "");
        EXPECT_EQ(received.ids, generation.ids);
        EXPECT_EQ(received.text, generation.text);
        EXPECT_EQ(received.finish_reason, finish);
      }
    }
  }
  stream.CloseRequests();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(KserveTest, StopStringsAndTheTextBefore) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest ours = TextRequest("Hello", 30);
  ours.mutable_sampling()->set_seed(3);
  ours.mutable_stop()->set_ignore_eog(true);
  const Generation whole = client().Generate(ours);
  ASSERT_TRUE(IsComplete(whole));
  // Any letter that first occurs late enough.
  char stop = 0;
  for (char c = 'a'; c <= 'z' && stop == 0; ++c) {
    const size_t at = whole.text.find(c);
    if (at != std::string::npos && at > 3) stop = c;
  }
  ASSERT_NE(stop, 0) << whole.text;
  const Inference one =
      Infer(kserve(), InferRequest("Hello", absl::StrCat(R"({"seed": 3, "max_tokens": 30, )",
                                                         R"("ignore_eos": true, "stop": ")",
                                                         std::string(1, stop), R"("})")));
  ASSERT_TRUE(one.error.ok()) << one.error;
  EXPECT_EQ(one.text, "Hello" + whole.text.substr(0, whole.text.find(stop)));
}

// Parameters have the same meaning as in vLLM: the frequency and presence penalties count generated
// tokens and the repetition penalty all, min_tokens also holds off stop ids and stop strings, and a
// negative seed means a random one.
TEST_F(KserveTest, SamplingParametersMeanWhatVllmsDo) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::TokenizeRequest tokenize;
  tokenize.mutable_text()->set_text("a a a a a a a a a a a a");
  const uint32_t token = client().Tokens(tokenize).back();
  const auto infer = [&](const std::string& sampling) {
    inference::ModelInferRequest request = InferRequest(tokenize.text().text(), sampling);
    AddBool(request, "exclude_input_in_output", true);
    AskForTokens(request);
    const Inference answer = Infer(kserve(), request);
    EXPECT_TRUE(answer.error.ok()) << answer.error;
    return answer;
  };
  const std::string biased =
      absl::StrCat(R"("temperature": 0, "ignore_eos": true, "max_tokens": 30, "logit_bias": {")",
                   token, R"(": 1000})");
  const Inference penalised = infer("{" + biased + R"(, "frequency_penalty": 100})");
  ASSERT_EQ(penalised.ids.size(), 30u);
  EXPECT_EQ(std::count(penalised.ids.begin(), penalised.ids.begin() + 8, token), 8);
  EXPECT_LE(std::count(penalised.ids.begin(), penalised.ids.end(), token), 11);

  // Another token that comes once the first has lost more than 100.
  uint32_t other = 40;
  while (std::ranges::count(client().Tokens(tokenize), other) > 0) ++other;
  const std::string two =
      absl::StrCat(R"("temperature": 0, "ignore_eos": true, "max_tokens": 5, "logit_bias": {")",
                   token, R"(": 1000, ")", other, R"(": 940})");
  EXPECT_THAT(infer("{" + two + "}").ids, ElementsAre(token, token, token, token, token));
  // The prompt does not count, and a token counts once: 1000 before 940, then 940 before 900, then
  // 900 before 840.
  EXPECT_THAT(infer("{" + two + R"(, "presence_penalty": 100})").ids,
              ElementsAre(token, other, token, token, token));
  // Prompt and output count: 940 before 1000 / 2, then 1000 / 2 before 940 / 2.
  EXPECT_THAT(infer("{" + two + R"(, "repetition_penalty": 2})").ids,
              ElementsAre(other, token, token, token, token));

  // The token that ends it does not come here.
  const std::string stops = biased + absl::StrCat(R"(, "stop_token_ids": [)", token, "]");
  const Inference at_once = infer("{" + stops + "}");
  EXPECT_EQ(at_once.finish_reason, "stop");
  EXPECT_TRUE(at_once.ids.empty());
  const Inference held_off = infer("{" + stops + R"(, "min_tokens": 4})");
  EXPECT_EQ(held_off.finish_reason, "stop");
  EXPECT_EQ(held_off.ids.size(), 4u);
  EXPECT_EQ(std::ranges::count(held_off.ids, token), 0);

  const Inference stopped = infer("{" + biased + R"(, "stop": "a"})");
  EXPECT_EQ(stopped.ids.size(), 1u);
  const Inference later = infer("{" + biased + R"(, "stop": "a", "min_tokens": 12})");
  EXPECT_EQ(later.ids.size(), 13u);

  const std::string random = R"({"seed": -3, "ignore_eos": true, "max_tokens": 40})";
  EXPECT_NE(infer(random).ids, infer(random).ids);
}

TEST_F(KserveTest, ManyRequestsShareAStreamAndOneThatFailsEndsAlone) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-seqs", "2", "--max-waiting", "1"}));
  InferStream stream(kserve());
  ASSERT_TRUE(stream.Send(Streamed("a", kEndless)));
  ASSERT_TRUE(stream.Send(Streamed("b", kEndless)));
  ASSERT_TRUE(stream.ReadUntilTokens("a", 1));
  ASSERT_TRUE(stream.ReadUntilTokens("b", 1));
  ASSERT_TRUE(stream.Send(Streamed("waits", R"({"max_tokens": 3, "ignore_eos": true})")));
  ASSERT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().waiting_requests() == 1; }));
  ASSERT_TRUE(stream.Send(Streamed("full", kEndless)));
  ASSERT_TRUE(stream.ReadUntilEnd("full"));
  EXPECT_TRUE(IsError(stream.by_id()["full"].error, StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  const Inference one = Infer(kserve(), InferRequest("Hello", kEndless));
  EXPECT_TRUE(IsError(one.error, StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  EXPECT_TRUE(one.error.has_quota_failure);
  ASSERT_TRUE(stream.Send(Streamed("bad", R"({"temperature": -1})")));
  ASSERT_TRUE(stream.ReadUntilEnd("bad"));
  EXPECT_TRUE(IsError(stream.by_id()["bad"].error, StatusCode::INVALID_ARGUMENT, "INVALID_FIELD"));
  const size_t before = stream.by_id()["a"].ids.size();
  EXPECT_TRUE(stream.ReadUntilTokens("a", before + 5)) << "the others go on";
  stream.HangUp();
  EXPECT_EQ(stream.Finish().code, StatusCode::CANCELLED);
  EXPECT_TRUE(client().WaitForQuiet());
}

// The value of a metric in the text of /metrics.
double Metric(const std::string& metrics, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(metrics, '\n')) {
    absl::string_view rest = line;
    double value = 0;
    if (absl::ConsumePrefix(&rest, name + " ") && absl::SimpleAtod(rest, &value)) return value;
  }
  return -1;
}

TEST_F(KserveTest, RequestsAreMeasuredAsThoseOfOrcdV1) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--metrics-listen", "127.0.0.1:0"}));
  const std::string five = R"({"max_tokens": 5, "ignore_eos": true})";
  EXPECT_TRUE(Infer(kserve(), InferRequest("Hello", five)).error.ok());
  EXPECT_FALSE(Infer(kserve(), InferRequest("Hello", "{}}")).error.ok());
  InferStream stream(kserve());
  ASSERT_TRUE(stream.Send(Streamed("good", five)));
  ASSERT_TRUE(stream.Send(Streamed("bad", "{}}")));
  stream.CloseRequests();
  EXPECT_TRUE(stream.Finish().ok());
  // The worker records a call once gRPC is done with it, which may be after the client is.
  EXPECT_TRUE(Wait([&] {
    const std::string metrics = HttpGet(worker().SideAddress("metrics"), "/metrics");
    return Metric(metrics, "orcd_request_e2e_seconds_count") == 2 &&
           Metric(metrics, "orcd_generated_tokens_total") == 10 &&
           Metric(metrics, "orcd_time_to_first_token_seconds_count") == 2 &&
           Metric(metrics, R"(orcd_rejections_total{reason="INVALID_FIELD"})") == 2;
  }));
}

// Clients hang up in the queue, in prefill and in decode, with and without streaming. No new step
// includes a request whose client has left: its slot and blocks are free once the running steps
// end.
TEST_F(KserveTest, ARequestOfALeftClientIsInNoFurtherStep) {
  // The null backend has two steps in flight, as the GPU backend has. The histogram's bucket holds
  // releases after two steps, but not after a third; a busy machine has half a step to be late.
  constexpr int kClients = kSanitized ? 60 : 250;
  const absl::Duration step = kSanitized ? absl::Seconds(2) : absl::Milliseconds(400);
  const std::string bucket = kSanitized ? "5" : "1";
  constexpr int kThreads = 40;
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--backend", "null", "--null-step", absl::FormatDuration(step), "--max-seqs",
                   "32", "--max-step-tokens", "400", "--metrics-listen", "127.0.0.1:0"}));
  Stub& stub = kserve();
  std::atomic<int> next = 0;
  std::atomic<int> before_tokens = 0;
  std::atomic<int> after_tokens = 0;
  const auto play = [&] {
    for (int i = next++; i < kClients; i = next++) {
      std::minstd_rand random(static_cast<uint32_t>(i) * 2654435761U + 1);
      const bool streams = random() % 2 == 0;
      const bool awaits_token = random() % 2 == 0;
      const absl::Duration stay = step * (random() % (kSanitized ? 2500 : 5000)) / 1000;
      inference::ModelInferRequest request =
          InferRequest(std::string(1 + random() % 600, '7'), kEndless);
      request.set_id(absl::StrCat("leaver-", i));
      if (streams) {
        AddBool(request, "stream", true);
        AskForTokens(request);
        InferStream stream(stub);
        EXPECT_TRUE(stream.Send(request));
        if (awaits_token) {
          EXPECT_TRUE(stream.ReadUntilTokens(request.id(), 1));
        }
        std::thread leave([&] {
          absl::SleepFor(stay);
          stream.HangUp();
        });
        EXPECT_EQ(stream.Finish().code, StatusCode::CANCELLED);
        leave.join();
        ++(stream.by_id()[request.id()].ids.empty() ? before_tokens : after_tokens);
      } else {
        grpc::ClientContext context;
        std::thread leave([&] {
          absl::SleepFor(stay);
          context.TryCancel();
        });
        inference::ModelInferResponse reply;
        EXPECT_EQ(stub.ModelInfer(&context, request, &reply).error_code(), StatusCode::CANCELLED);
        leave.join();
      }
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < kThreads; ++i) clients.emplace_back(play);
  for (std::thread& thread : clients) thread.join();
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_GT(before_tokens, kClients / 20);
  EXPECT_GT(after_tokens, kClients / 20);

  // Each request that the worker has heard of was released; clients may leave before that.
  std::string metrics;
  double released = 0;
  EXPECT_TRUE(Wait([&] {
    metrics = HttpGet(worker().SideAddress("metrics"), "/metrics");
    released = Metric(metrics, "orcd_cancel_to_release_seconds_count");
    return released == Metric(metrics, "orcd_request_e2e_seconds_count");
  })) << released
      << " of " << Metric(metrics, "orcd_request_e2e_seconds_count");
  EXPECT_GT(released, kClients / 2);
  EXPECT_EQ(
      Metric(metrics, absl::StrCat("orcd_cancel_to_release_seconds_bucket{le=\"", bucket, "\"}")),
      released);
  const Inference one = Infer(stub, InferRequest("Hello", R"({"max_tokens": 3})"));
  EXPECT_TRUE(one.error.ok()) << one.error;
}

TEST_F(KserveTest, DrainEndsWhatRunsAndRefusesWhatComes) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  EXPECT_TRUE(ServerReady());
  InferStream stream(kserve());
  ASSERT_TRUE(stream.Send(Streamed("endless", kEndless)));
  ASSERT_TRUE(stream.ReadUntilTokens("endless", 3));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  v1::DrainRequest drain;
  drain.mutable_timeout()->set_seconds(0);
  auto reader = stub().Drain(&context, drain);
  v1::DrainResponse progress;
  while (reader->Read(&progress)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_TRUE(stream.ReadUntilEnd("endless"));
  EXPECT_TRUE(IsError(stream.by_id()["endless"].error, StatusCode::UNAVAILABLE, "DRAINED"));
  EXPECT_EQ(stream.by_id()["endless"].violation, "");
  ASSERT_TRUE(stream.Send(Streamed("late", kEndless)));
  ASSERT_TRUE(stream.ReadUntilEnd("late"));
  EXPECT_TRUE(IsError(stream.by_id()["late"].error, StatusCode::UNAVAILABLE, "DRAINING"));
  EXPECT_TRUE(IsError(Infer(kserve(), InferRequest("Hello", "")).error, StatusCode::UNAVAILABLE,
                      "DRAINING"));
  EXPECT_FALSE(ServerReady());
  EXPECT_TRUE(ServerLive());
  // The stream stays open for as long as its client likes, and does not delay the worker's end.
  const absl::StatusOr<ProcessEnd> end = worker().Terminate(Bound(absl::Seconds(20)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
  EXPECT_TRUE(IsError(stream.Finish(), StatusCode::UNAVAILABLE, "DRAINING"));
}

TEST_F(KserveTest, WhileAModelIsLoadedNothingIsReady) {
  WriteSlowToLoadModel(models().File("slow.gguf"));
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  EXPECT_FALSE(ServerReady());
  EXPECT_TRUE(IsError(Infer(kserve(), InferRequest("Hello", "")).error,
                      StatusCode::FAILED_PRECONDITION, "MODEL_NOT_LOADED"));
  grpc::ClientContext context;
  inference::RepositoryModelLoadRequest request;
  request.set_model_name("slow");
  inference::RepositoryModelLoadResponse response;
  std::thread loader([&] {
    EXPECT_EQ(kserve().RepositoryModelLoad(&context, request, &response).error_code(),
              StatusCode::CANCELLED);
  });
  EXPECT_TRUE(client().WaitForState(v1::WORKER_STATE_LOADING));
  const Inference one = Infer(kserve(), InferRequest("Hello", ""));
  EXPECT_TRUE(IsError(one.error, StatusCode::UNAVAILABLE, "LOADING"));
  EXPECT_TRUE(one.error.retry_delay);
  EXPECT_FALSE(ServerReady());
  // The caller leaves, and the worker rolls the load back.
  context.TryCancel();
  loader.join();
  EXPECT_TRUE(client().WaitForState(v1::WORKER_STATE_IDLE));
}

TEST_F(KserveTest, LoadsAndUnloadsLikeTriton) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  grpc::ClientContext load_context;
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("nano");
  inference::RepositoryModelLoadResponse loaded;
  ASSERT_TRUE(kserve().RepositoryModelLoad(&load_context, load, &loaded).ok());
  EXPECT_TRUE(ServerReady());
  InferStream stream(kserve());
  ASSERT_TRUE(stream.Send(Streamed("endless", kEndless)));
  ASSERT_TRUE(stream.ReadUntilTokens("endless", 1));
  const auto unload = [&](bool force) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    inference::RepositoryModelUnloadRequest request;
    request.set_model_name("nano");
    (*request.mutable_parameters())["force"].set_bool_param(force);
    (*request.mutable_parameters())["unload_dependents"].set_bool_param(false);
    inference::RepositoryModelUnloadResponse response;
    return DecodeError(kserve().RepositoryModelUnload(&context, request, &response));
  };
  EXPECT_TRUE(IsError(unload(false), StatusCode::FAILED_PRECONDITION, "REQUESTS_RUNNING"));
  EXPECT_TRUE(unload(true).ok());
  ASSERT_TRUE(stream.ReadUntilEnd("endless"));
  EXPECT_EQ(stream.by_id()["endless"].error.code, StatusCode::CANCELLED);
  EXPECT_FALSE(ServerReady());
  stream.CloseRequests();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(KserveTest, PermissionsAreThoseOfOrcdV1) {
  const std::string tokens = models().File("tokens");
  std::ofstream(tokens) << "control control-secret-0001\ninference inference-secret-0001\n";
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--token-file", tokens, "--model", "nano.gguf"}));
  const auto code = [&](const std::string& token, const auto& call) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    return call(context).error_code();
  };
  const auto index = [&](grpc::ClientContext& context) {
    inference::RepositoryIndexResponse response;
    return kserve().RepositoryIndex(&context, {}, &response);
  };
  const auto load = [&](grpc::ClientContext& context) {
    inference::RepositoryModelLoadRequest request;
    request.set_model_name("nano");
    inference::RepositoryModelLoadResponse response;
    return kserve().RepositoryModelLoad(&context, request, &response);
  };
  const auto infer = [&](grpc::ClientContext& context) {
    inference::ModelInferResponse response;
    return kserve().ModelInfer(&context, InferRequest("Hello", R"({"max_tokens": 1})"), &response);
  };
  const auto stream = [&](grpc::ClientContext& context) {
    auto call = kserve().ModelStreamInfer(&context);
    call->WritesDone();
    inference::ModelStreamInferResponse response;
    EXPECT_FALSE(call->Read(&response));
    return call->Finish();
  };
  for (const auto& [token, may_infer, may_load] :
       {std::tuple("inference-secret-0001", true, false), {"control-secret-0001", false, true}}) {
    EXPECT_EQ(code(token, index), StatusCode::OK);
    ASSERT_TRUE(
        WaitUntil([&, token = token] { return code(token, load) != StatusCode::UNAVAILABLE; },
                  Bound(absl::Seconds(30))));
    EXPECT_EQ(code(token, load), may_load ? StatusCode::OK : StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(code(token, stream), may_infer ? StatusCode::OK : StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(code(token, infer) == StatusCode::PERMISSION_DENIED, !may_infer);
  }
  for (const char* token : {"", "unknown-secret-0001"}) {
    EXPECT_EQ(code(token, index), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code(token, infer), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code(token, stream), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code(token, load), StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(code("inference-secret-0001", infer), StatusCode::OK);
}

TEST_F(KserveTest, OneFlagTurnsItOff) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--no-kserve"}));
  EXPECT_EQ(Infer(kserve(), InferRequest("Hello", "")).error.code, StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
}

}  // namespace
}  // namespace orcd::testing
