// The Open Inference Protocol beside orcd.v1: the same tokens, the same promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using Stub = inference::GRPCInferenceService::Stub;

constexpr char kEndless[] = R"({"ignore_eos": true, "seed": 1})";

class KserveTest : public WorkerTest {
 protected:
  void TearDown() override {
    // It holds the channel, whose connection the worker would wait for.
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

// Of one answer and of a stream, typed and raw, alone and among others.
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
        const Inference& told = stream.by_id()[id];
        EXPECT_TRUE(told.error.ok()) << told.error;
        EXPECT_EQ(told.violation, "");
        EXPECT_EQ(told.ids, generation.ids);
        EXPECT_EQ(told.text, generation.text);
        EXPECT_EQ(told.finish_reason, finish);
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
  // A letter that comes late enough, whichever it is.
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

// The figure on a line of /metrics.
double Metric(const std::string& metrics, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(metrics, '\n')) {
    absl::string_view rest = line;
    double value = 0;
    if (absl::ConsumePrefix(&rest, name + " ") && absl::SimpleAtod(rest, &value)) return value;
  }
  return -1;
}

// Whoever leaves, at whatever moment: its slot and its blocks are free within a step, each time.
TEST_F(KserveTest, ClientsThatLeaveAtRandomMomentsFreeWhatTheyHadWithinAStep) {
  constexpr int kClients = 250;
  constexpr int kAtOnce = 5;
  constexpr double kStepSeconds = 0.004;
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--backend", "null", "--null-step", "4ms", "--max-seqs", "4",
                   "--max-step-tokens", "16", "--metrics-listen", "127.0.0.1:0"}));
  // Long enough for a prefill of several steps, which somebody may leave too.
  const std::string prompt(200, '7');
  const auto leave = [&](int index) {
    std::mt19937 random(index);
    inference::ModelInferRequest request = InferRequest(prompt, kEndless);
    request.set_id(absl::StrCat("c", index));
    const auto pause = absl::Microseconds(std::uniform_int_distribution<int>(0, 60'000)(random));
    if (index % 2 == 0) {
      // One answer: the deadline is the client's own and says nothing to the server's engine until
      // the call is cut.
      grpc::ClientContext context;
      std::thread leaver([&] {
        absl::SleepFor(pause);
        context.TryCancel();
      });
      inference::ModelInferResponse reply;
      const grpc::Status status = kserve().ModelInfer(&context, request, &reply);
      leaver.join();
      EXPECT_EQ(status.error_code(), StatusCode::CANCELLED);
      return;
    }
    AddBool(request, "stream", true);
    AskForTokens(request);
    InferStream stream(kserve());
    EXPECT_TRUE(stream.Send(request));
    std::thread leaver([&] {
      absl::SleepFor(pause);
      stream.HangUp();
    });
    EXPECT_EQ(stream.Finish().code, StatusCode::CANCELLED);
    leaver.join();
  };
  kserve();
  std::vector<std::thread> clients;
  for (int first = 0; first < kAtOnce; ++first) {
    clients.emplace_back([&, first] {
      for (int i = first; i < kClients; i += kAtOnce) leave(i);
    });
  }
  for (std::thread& thread : clients) thread.join();
  ASSERT_TRUE(client().WaitForQuiet());

  const std::string metrics = HttpGet(worker().SideAddress("metrics"), "/metrics");
  const double released = Metric(metrics, "orcd_cancel_to_release_seconds_count");
  const double ended = Metric(
      metrics, R"(orcd_requests_total{code="CANCELLED",finish_reason="FINISH_REASON_CANCELLED"})");
  EXPECT_GT(ended, kClients / 2) << "some leave before the worker has read their request";
  EXPECT_LE(ended, kClients);
  EXPECT_GE(released, ended) << "some are asked for twice: by the call, and by who submitted";
  // The step under way ends first; the rest is the machine's.
  EXPECT_LT(Metric(metrics, "orcd_cancel_to_release_seconds_sum") / released,
            absl::ToDoubleSeconds(Bound(absl::Seconds(5 * kStepSeconds))));
  const Inference one = Infer(kserve(), InferRequest("Hello", R"({"max_tokens": 3})"));
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
  // The stream stays open for as long as its client likes, and does not keep the worker.
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
  // Whoever asked for it leaves, and it is rolled back.
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
