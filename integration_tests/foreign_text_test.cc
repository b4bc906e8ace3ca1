// Model files and names with text that is not UTF-8. Everything the worker says about them must be
// readable for clients, orchestrators, and readers of metrics and logs.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "inference/grpc_service.grpc.pb.h"
#include "integration_tests/gguf_editor.h"
#include "integration_tests/http_get.h"
#include "integration_tests/scripted_orchestrator.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_fixture.h"
#include "vllm/vllm_engine.grpc.pb.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

// "dérivé" in Latin-1.
constexpr char kLatin1[] = "d\xe9riv\xe9";
constexpr char kReplaced[] = "d\xEF\xBF\xBDriv\xEF\xBF\xBD";
constexpr char kWorkerId[] = "worker-1";

class ForeignTextTest : public WorkerTest {
 protected:
  ForeignTextTest() : orchestrator_(absl::Seconds(2)), server_(orchestrator_) {}

  void StartWatched(std::vector<std::string> args) {
    args.insert(args.end(), {"--orchestrator", server_.address(), "--worker-id", kWorkerId,
                             "--metrics-listen", "127.0.0.1:0", "--log-format", "json"});
    StartWorker(args);
  }

  // Every API and every channel gives an answer that can be decoded. A client that cannot decode a
  // proto3 message ends the call with an error of its own.
  void ExpectReadable() {
    client().Status();
    auto kserve = inference::GRPCInferenceService::NewStub(client().channel());
    {
      grpc::ClientContext context;
      inference::RepositoryIndexResponse index;
      EXPECT_TRUE(kserve->RepositoryIndex(&context, {}, &index).ok());
      for (const auto& model : index.models()) {
        grpc::ClientContext about_model;
        inference::ModelMetadataRequest request;
        request.set_name(model.name());
        inference::ModelMetadataResponse metadata;
        EXPECT_NE(kserve->ModelMetadata(&about_model, request, &metadata).error_code(),
                  StatusCode::INTERNAL);
      }
    }
    {
      auto vllm = ::vllm::grpc::engine::VllmEngine::NewStub(client().channel());
      grpc::ClientContext context;
      ::vllm::grpc::engine::GetModelInfoResponse info;
      const grpc::Status status = vllm->GetModelInfo(&context, {}, &info);
      EXPECT_NE(status.error_code(), StatusCode::INTERNAL) << status.error_message();
      EXPECT_TRUE(IsValidUtf8(status.error_message()));
    }
    // A heartbeat that cannot be decoded never reaches the orchestrator's handler.
    const size_t before = orchestrator_.heartbeats().size();
    EXPECT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() > before + 1; }));
    EXPECT_TRUE(IsValidUtf8(HttpGet(worker().SideAddress("metrics"), "/metrics")));
    const std::string log = worker().Log();
    EXPECT_TRUE(IsValidUtf8(log)) << log;
    const std::vector<std::string> lines = absl::StrSplit(log, '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    }
  }

  ScriptedOrchestrator orchestrator_;
  OrchestratorServer server_;
};

TEST_F(ForeignTextTest, AFileOfAnyNameIsServed) {
  const std::string name = absl::StrCat(kLatin1, ".gguf");
  std::filesystem::rename(models().File("nano.gguf"), models().File(name));
  ASSERT_NO_FATAL_FAILURE(StartWatched({"--model", name}));
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_READY));
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.model().file(), absl::StrCat(kReplaced, ".gguf"));
  EXPECT_EQ(status.model().model_id(), kReplaced);
  EXPECT_TRUE(
      Wait([&] { return orchestrator_.status(kWorkerId).state() == v1::WORKER_STATE_READY; }));
  EXPECT_EQ(orchestrator_.status(kWorkerId).model().model_id(), kReplaced);
  ExpectReadable();
  // The model can be requested by its reported name.
  v1::GenerateRequest request = TextRequest("Hello", 3);
  request.set_model_id(kReplaced);
  EXPECT_TRUE(IsComplete(client().Generate(request)));
  EXPECT_TRUE(client().Load(status.model().file()).loaded);
}

TEST_F(ForeignTextTest, EveryStringOfAFileMayBeAnything) {
  struct Case {
    const char* name;
    std::function<void(GgufEditor&)> spoil;
    bool loads;
  };
  const auto set = [](const char* key) {
    return [key](GgufEditor& file) { file.Set(key, kGgufString, StringBytes(kLatin1)); };
  };
  const auto element = [](const char* key, size_t from_end, const std::string& text) {
    return [=](GgufEditor& file) {
      std::vector<std::string> strings = file.GetStrings(key);
      strings[strings.size() - 1 - from_end] = text;
      file.SetStrings(key, strings);
    };
  };
  constexpr char kTokens[] = "tokenizer.ggml.tokens";
  const std::vector<Case> cases = {
      {"name", set("general.name"), true},
      {"template", set("tokenizer.chat_template"), true},
      {"foreign", set("de.d\xe9riv\xe9.key"), true},
      {"architecture", set("general.architecture"), false},
      {"model", set("tokenizer.ggml.model"), false},
      {"pre", set("tokenizer.ggml.pre"), false},
      {"merge", element("tokenizer.ggml.merges", 0, "\xff \xfe"), false},
      {"twice",
       [&](GgufEditor& file) {
         element(kTokens, 0, "\xff\xfe")(file);
         element(kTokens, 1, "\xff\xfe")(file);
       },
       false},
      {"tensor", [](GgufEditor& file) { file.tensors[0].name = "\xff.weight"; }, false},
  };
  ASSERT_NO_FATAL_FAILURE(StartWatched({}));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    GgufEditor file(models().File("nano.gguf"));
    c.spoil(file);
    const std::string name = absl::StrCat(c.name, ".gguf");
    file.Write(models().File(name));
    const LoadResult result = client().Load(name);
    EXPECT_EQ(result.loaded.has_value(), c.loads) << result.error;
    EXPECT_NE(result.error.code, StatusCode::INTERNAL) << result.error;
    EXPECT_TRUE(IsValidUtf8(result.error.message));
    const v1::WorkerStatus status = client().Status();
    if (c.loads) {
      EXPECT_EQ(status.model().model_id(), c.name);
      EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
    } else {
      EXPECT_EQ(result.error.domain, "orcd") << result.error;
      EXPECT_THAT(status.reason(), HasSubstr(name));
    }
    ExpectReadable();
    ASSERT_TRUE(client().Unload(false).ok());
  }
  // The worker logs a line about a chat template that it does not know.
  EXPECT_THAT(worker().Log(), HasSubstr("tokenizer.chat_template"));
}

// Invalid UTF-8 on the command line comes back in messages as valid UTF-8.
TEST_F(ForeignTextTest, ArgumentsMayBeAnything) {
  WorkerOptions options;
  options.args = {absl::StrCat("--no-such-flag-", kLatin1)};
  const auto refused = WorkerProcess::Start(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(IsValidUtf8(std::string(refused.status().message()))) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(kReplaced));

  ASSERT_NO_FATAL_FAILURE(StartWatched({}));
  ExpectReadable();
}

}  // namespace
}  // namespace orcd::testing
