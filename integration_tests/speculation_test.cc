// Guessed tokens change how fast tokens come, and never a token. A worker reports what guesses it
// and how often it is right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/gguf_editor.h"
#include "integration_tests/http_get.h"
#include "integration_tests/infer_client.h"
#include "integration_tests/many_call.h"
#include "integration_tests/test_models.h"
#include "integration_tests/vllm_client.h"
#include "integration_tests/worker_fixture.h"
#include "testing/random_model/random_model.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

class SpeculationTest : public WorkerTest {
 protected:
  static constexpr uint32_t kRepeated = 40;

  // A request whose output is one token over and over, so that the text so far says what follows.
  static v1::GenerateRequest Monotonous(uint32_t tokens) {
    v1::GenerateRequest request = TokenRequest({kRepeated, 41, 42}, tokens);
    request.mutable_sampling()->set_temperature(0);
    (*request.mutable_sampling()->mutable_logit_bias())[kRepeated] = 1000;
    request.mutable_stop()->set_ignore_eog(true);
    return request;
  }

  // The error of loading nano.gguf into a worker with these flags.
  RpcError LoadWith(const std::vector<std::string>& args) {
    RpcError error;
    [&] { ASSERT_NO_FATAL_FAILURE(StartWorker(args)); }();
    if (HasFatalFailure()) return error;
    error = client().Load("nano.gguf").error;
    EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_IDLE);
    StopWorker();
    return error;
  }
};

TEST_F(SpeculationTest, TheModelsOwnBlockGuesses) {
  RandomModelOptions options;
  options.architecture = "glm4moe";
  ASSERT_TRUE(WriteRandomModel(options, models().File("block.gguf")).ok());
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--draft", "mtp", "--draft-tokens", "3"}));
  const auto loaded = client().Load("block.gguf");
  ASSERT_TRUE(loaded.error.ok()) << loaded.error;
  EXPECT_EQ(client().Status().model().speculation().drafter(), "mtp");
  EXPECT_EQ(client().Status().model().speculation().warning(), "");
  const Generation generation = client().Generate(Monotonous(50));
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.ids, std::vector<uint32_t>(50, kRepeated));
  EXPECT_GT(generation.finished->usage().draft_tokens(), 0u);
}

TEST_F(SpeculationTest, AFileWithoutABlockIsServedWithoutGuesses) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--draft", "mtp"}));
  const v1::Speculation speculation = client().Status().model().speculation();
  EXPECT_EQ(speculation.drafter(), "none");
  EXPECT_THAT(speculation.warning(), HasSubstr("holds no block that predicts tokens"));
  const Generation generation = client().Generate(Monotonous(20));
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.finished->usage().draft_tokens(), 0u);
}

TEST_F(SpeculationTest, GuessesAreCountedByEveryProtocol) {
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--draft", "ngram", "--draft-tokens", "4", "--metrics-listen", "127.0.0.1:0"}));
  EXPECT_EQ(client().Status().model().speculation().drafter(), "ngram");
  EXPECT_EQ(client().Status().model().speculation().warning(), "");
  EXPECT_TRUE(client().Status().has_speculation());

  constexpr uint32_t kTokens = 200;
  const Generation generation = client().Generate(Monotonous(kTokens));
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.ids, std::vector<uint32_t>(kTokens, kRepeated));
  const v1::Usage& usage = generation.finished->usage();
  EXPECT_GT(usage.accepted_draft_tokens(), 0u);
  EXPECT_LE(usage.accepted_draft_tokens(), usage.draft_tokens());
  EXPECT_LT(usage.accepted_draft_tokens(), usage.generated_tokens());
  uint64_t guessed = usage.draft_tokens();
  uint64_t right = usage.accepted_draft_tokens();

  for (const bool stream : {false, true}) {
    VllmGeneration by_vllm =
        VllmClient(client().channel()).Generate(ToVllm(Monotonous(kTokens), stream));
    ASSERT_TRUE(IsComplete(by_vllm)) << by_vllm.error;
    EXPECT_EQ(by_vllm.first().ids, generation.ids);
    const vllm_wire::GenerateComplete& complete = *by_vllm.first().complete;
    EXPECT_GT(complete.spec_accepted_tokens(), 0u);
    EXPECT_LE(complete.spec_accepted_tokens(), complete.spec_draft_tokens());
    guessed += complete.spec_draft_tokens();
    right += complete.spec_accepted_tokens();
  }

  // The status follows the step in which a request ended.
  EXPECT_TRUE(client().WaitForStatus([&](const v1::WorkerStatus& status) {
    return status.speculation().draft_tokens() == guessed &&
           status.speculation().accepted_draft_tokens() == right;
  })) << guessed
      << " " << right << " " << client().Status().speculation().DebugString();
  const std::string metrics = HttpGet(worker().SideAddress("metrics"), "/metrics");
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\norcd_draft_tokens_total{result=\"accepted\"} ",
                                              right, "\n")));
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\norcd_draft_tokens_total{result=\"rejected\"} ",
                                              guessed - right, "\n")));
}

TEST_F(SpeculationTest, ARequestMaySwitchItOff) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--draft", "ngram", "--draft-tokens", "4"}));
  v1::GenerateRequest request = Monotonous(50);
  request.set_speculation(false);
  const Generation off = client().Generate(request);
  ASSERT_TRUE(IsComplete(off)) << off.error;
  EXPECT_EQ(off.finished->usage().draft_tokens(), 0u);
  EXPECT_EQ(off.finished->usage().accepted_draft_tokens(), 0u);

  const auto kserve = inference::GRPCInferenceService::NewStub(client().channel());
  const auto infer = [&](const char* more) {
    inference::ModelInferRequest infer_request = InferRequest(
        "Once", absl::StrCat(R"({"temperature": 0, "max_tokens": 50, "ignore_eos": true,
                                 "logit_bias": {")",
                             kRepeated, R"(": 1000})", more, "}"));
    AskForTokens(infer_request);
    return Infer(*kserve, infer_request);
  };
  const Inference kserve_off = infer(R"(, "speculation": false)");
  ASSERT_TRUE(kserve_off.error.ok()) << kserve_off.error;
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_EQ(client().Status().speculation().draft_tokens(), 0u);
  const Inference kserve_on = infer("");
  ASSERT_TRUE(kserve_on.error.ok()) << kserve_on.error;
  EXPECT_EQ(kserve_on.ids, kserve_off.ids);
  EXPECT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.speculation().draft_tokens() > 0; }));

  request.set_speculation(true);
  const Generation on = client().Generate(request);
  ASSERT_TRUE(IsComplete(on)) << on.error;
  EXPECT_EQ(on.ids, off.ids);
  EXPECT_GT(on.finished->usage().draft_tokens(), 0u);
}

TEST_F(SpeculationTest, WithoutTheFlagNothingIsGuessed) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest request = Monotonous(50);
  request.set_speculation(true);
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.finished->usage().draft_tokens(), 0u);
  const v1::WorkerStatus status = client().Status();
  EXPECT_FALSE(status.model().has_speculation());
  EXPECT_FALSE(status.has_speculation());
  EXPECT_EQ(status.memory().draft_bytes(), 0u);
}

TEST_F(SpeculationTest, ADraftModelIsLoadedBesideTheModel) {
  WriteNanoModel(models().File("small.gguf"), 2);
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--draft", "small.gguf", "--max-seqs", "2", "--max-context", "512"}));
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.model().speculation().drafter(), "model");
  EXPECT_EQ(status.model().speculation().draft_model(), "small.gguf");
  EXPECT_EQ(status.model().speculation().warning(), "");
  // At least its weights.
  EXPECT_GE(status.memory().draft_bytes(), status.memory().weights_bytes());
  ASSERT_TRUE(client().Unload(false).ok());
  EXPECT_EQ(client().Status().memory().draft_bytes(), 0u);
  EXPECT_TRUE(client().Load("nano.gguf").loaded);
}

TEST_F(SpeculationTest, ABadDraftModelFailsTheLoad) {
  EXPECT_TRUE(
      IsError(LoadWith({"--draft", "none.gguf"}), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND"));
  EXPECT_TRUE(IsError(LoadWith({"--draft", "../nano.gguf"}), StatusCode::INVALID_ARGUMENT,
                      "MODEL_PATH_NOT_ALLOWED"));

  GgufEditor whole(models().File("nano.gguf"));
  GgufEditor cut = whole;
  cut.data.resize(cut.data.size() / 2);
  cut.Write(models().File("cut.gguf"));
  const RpcError truncated = LoadWith({"--draft", "cut.gguf"});
  EXPECT_TRUE(IsError(truncated, StatusCode::INVALID_ARGUMENT, "GGUF_TRUNCATED"));
  EXPECT_THAT(truncated.message, HasSubstr("cut.gguf"));

  const RpcError other_bytes =
      LoadWith({"--draft", "nano.gguf", "--draft-sha256", std::string(64, 'a')});
  EXPECT_TRUE(IsError(other_bytes, StatusCode::DATA_LOSS, "SHA256_MISMATCH"));

  // Another text for one id makes another vocabulary.
  std::vector<std::string> tokens = whole.GetStrings("tokenizer.ggml.tokens");
  tokens.back() = "<|other|>";
  whole.SetStrings("tokenizer.ggml.tokens", tokens);
  whole.Write(models().File("other.gguf"));
  const RpcError other_vocabulary = LoadWith({"--draft", "other.gguf"});
  EXPECT_TRUE(
      IsError(other_vocabulary, StatusCode::FAILED_PRECONDITION, "DRAFT_VOCABULARY_MISMATCH"));
  EXPECT_THAT(other_vocabulary.message, HasSubstr("other.gguf"));
}

// Runs random requests one at a time on a worker that does not guess, then together on workers that
// do and have room for few of them.
class SpeculationCrowdTest : public WorkerTest {
 protected:
  using Generations = std::map<std::string, ManyGeneration>;

  static constexpr uint32_t kContext = 240;
  static constexpr int kCrowd = kSanitized ? 12 : 40;
  // Requests that are cancelled while they run.
  static constexpr int kVictims = 4;
  static constexpr size_t kTokensBeforeCancel = 30;

  void StartWith(const std::string& model, std::vector<std::string> args) {
    args.insert(args.end(), {"--block-tokens", "4", "--max-context", absl::StrCat(kContext),
                             "--max-waiting-tokens", "100000"});
    ASSERT_NO_FATAL_FAILURE(StartWorker(std::move(args)));
    const LoadResult loaded = client().Load(model);
    ASSERT_TRUE(loaded.loaded) << loaded.error;
  }

  v1::GenerateRequest RandomRequest(const std::string& id, std::mt19937& random,
                                    const v1::ModelDescription& model) {
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    // Prompts that repeat themselves, so that there is something to guess.
    std::vector<uint32_t> pattern(2 + below(9));
    for (uint32_t& token : pattern) token = below(model.vocab());
    std::vector<uint32_t> ids(1 + below(60));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = pattern[i % pattern.size()];
    v1::GenerateRequest request = TokenRequest(ids, 1 + below(80));
    request.set_request_id(id);
    request.set_samples(1 + below(3));
    request.set_priority(static_cast<int32_t>(below(21)) - 10);
    if (below(6) == 0) request.set_speculation(false);
    if (below(4) == 0) request.set_logprobs(below(4));
    if (below(4) == 0) request.mutable_cache()->set_disabled(true);

    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_seed(random());
    sampling.set_temperature(below(3) == 0 ? 0 : static_cast<float>(below(16)) / 10);
    if (below(3) == 0) sampling.set_top_k(1 + below(50));
    if (below(3) == 0) sampling.set_top_p(0.8f);
    if (below(4) == 0) sampling.set_min_p(0.05f);
    if (below(3) == 0) sampling.set_repetition_penalty(1.2f);
    if (below(3) == 0) sampling.set_frequency_penalty(0.3f);
    if (below(4) == 0) sampling.set_presence_penalty(0.5f);
    sampling.set_count_prompt(below(4) == 0);
    sampling.set_temperature_first(below(4) == 0);
    // Draws of a few tokens repeat themselves too, at any temperature.
    if (below(2) == 0) {
      for (int i = 0; i < 3; ++i) (*sampling.mutable_logit_bias())[below(model.vocab())] = 20;
    }

    v1::StopConditions& stop = *request.mutable_stop();
    stop.set_ignore_eog(below(2) == 0);
    if (below(3) == 0) stop.set_min_tokens(below(1 + stop.max_tokens()));
    if (below(5) == 0) stop.add_strings("e");
    if (below(5) == 0) stop.add_token_ids(pattern[0]);
    if (model.constraints_supported() && below(4) == 0) {
      v1::Constraint& constraint = *request.mutable_constraint();
      if (below(2) == 0) {
        constraint.set_regex("(ab|cd|[0-9]){3,40}");
      } else {
        constraint.mutable_choice()->add_choices("the end of the end of the end");
        constraint.mutable_choice()->add_choices("the beginning of the end");
      }
    }
    return request;
  }

  std::vector<v1::GenerateRequest> RandomRequests(std::mt19937& random,
                                                  const v1::ModelDescription& model) {
    std::vector<v1::GenerateRequest> requests;
    for (int i = 0; i < kCrowd; ++i) {
      requests.push_back(RandomRequest(absl::StrCat(i), random, model));
    }
    for (int i = 0; i < kVictims; ++i) {
      v1::GenerateRequest victim = RandomRequest(absl::StrCat("victim-", i), random, model);
      victim.clear_samples();
      victim.clear_stop();
      victim.clear_constraint();
      victim.mutable_stop()->set_ignore_eog(true);
      victim.mutable_stop()->set_max_tokens(150);
      requests.push_back(std::move(victim));
    }
    return requests;
  }

  // Sends the requests over one call. `cancel`: ends victims after some of their tokens.
  Generations RunAll(const std::vector<v1::GenerateRequest>& requests, bool cancel) {
    ManyCall call(stub());
    for (const v1::GenerateRequest& request : requests) EXPECT_TRUE(call.Generate(request));
    for (int i = 0; cancel && i < kVictims; ++i) {
      const std::string id = absl::StrCat("victim-", i);
      ManyGeneration& victim = call.by_id()[id];
      while (victim.ids[0].size() < kTokensBeforeCancel && call.Read()) {
      }
      EXPECT_TRUE(call.Cancel(id));
    }
    call.CloseRequests();
    EXPECT_TRUE(call.Finish().ok());
    EXPECT_TRUE(client().WaitForQuiet());
    return std::move(call.by_id());
  }

  // The end of a request, without what may differ.
  static std::string EndOf(const ManyGeneration& generation) {
    v1::GenerateFinished finished = generation.end->finished();
    finished.clear_timings();
    finished.mutable_usage()->clear_cached_prompt_tokens();
    finished.mutable_usage()->clear_draft_tokens();
    finished.mutable_usage()->clear_accepted_draft_tokens();
    return finished.DebugString();
  }

  static void ExpectSame(const ManyGeneration& generation, const ManyGeneration& alone) {
    EXPECT_EQ(generation.violation, "");
    ASSERT_TRUE(generation.end && generation.end->has_finished()) << generation.error();
    EXPECT_EQ(generation.ids, alone.ids);
    EXPECT_EQ(generation.text, alone.text);
    EXPECT_EQ(EndOf(generation), EndOf(alone));
    for (const auto& [sample, logprobs] : alone.logprobs) {
      const std::vector<v1::TokenLogprobs>& others = generation.logprobs.at(sample);
      ASSERT_EQ(others.size(), logprobs.size());
      for (size_t i = 0; i < logprobs.size(); ++i) {
        EXPECT_EQ(others[i].SerializeAsString(), logprobs[i].SerializeAsString()) << i;
      }
    }
  }

  // A victim got the first of the tokens that it would have got.
  static void ExpectPrefix(const ManyGeneration& victim, const ManyGeneration& alone) {
    EXPECT_EQ(victim.violation, "");
    const std::vector<uint32_t>& ids = victim.ids.at(0);
    const std::vector<uint32_t>& whole = alone.ids.at(0);
    EXPECT_GE(ids.size(), kTokensBeforeCancel);
    ASSERT_LE(ids.size(), whole.size());
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), whole.begin()));
  }

  // Requests with one sample, resumed after some of the tokens that they got alone. The cut leaves
  // a token, so that the end is reached again.
  static std::vector<v1::GenerateRequest> Resumed(const std::vector<v1::GenerateRequest>& requests,
                                                  const Generations& alone, std::mt19937& random) {
    std::vector<v1::GenerateRequest> resumed;
    for (const v1::GenerateRequest& request : requests) {
      const auto& by_sample = alone.at(request.request_id()).ids;
      if (request.samples() > 1 || by_sample.empty() || by_sample.at(0).size() < 2) continue;
      const std::vector<uint32_t>& ids = by_sample.at(0);
      const size_t cut = 1 + random() % (ids.size() - 1);
      v1::GenerateRequest& rest = resumed.emplace_back(request);
      for (size_t t = 0; t < cut; ++t) rest.add_resume_token_ids(ids[t]);
    }
    return resumed;
  }

  struct Drafter {
    // Values of --draft and --draft-tokens.
    std::string name;
    int tokens = 0;
    // False if its guesses may all be wrong.
    bool is_good = true;
  };

  // A KV cache of `kv_bytes` holds the longest request, and not the crowd.
  void ExpectCrowdsSame(const std::string& model, const std::string& kv_bytes,
                        const std::vector<Drafter>& drafters) {
    ASSERT_NO_FATAL_FAILURE(StartWith(model, {"--max-seqs", "1"}));
    std::mt19937 random(7);
    const std::vector<v1::GenerateRequest> requests =
        RandomRequests(random, client().Status().model());
    Generations alone = RunAll(requests, /*cancel=*/false);
    for (const v1::GenerateRequest& request : requests) {
      const ManyGeneration& generation = alone[request.request_id()];
      ASSERT_TRUE(generation.error().ok()) << generation.error() << request.DebugString();
    }
    const std::vector<v1::GenerateRequest> resumed = Resumed(requests, alone, random);
    EXPECT_GT(resumed.size(), requests.size() / 8);
    ASSERT_NO_FATAL_FAILURE(StopWorker());

    for (const Drafter& drafter : drafters) {
      const std::string how =
          absl::StrCat(model, ", --draft ", drafter.name, ", --draft-tokens ", drafter.tokens);
      SCOPED_TRACE(how);
      ASSERT_NO_FATAL_FAILURE(StartWith(
          model, {"--draft", drafter.name, "--draft-tokens", absl::StrCat(drafter.tokens),
                  "--max-seqs", "6", "--max-step-tokens", "48", "--kv-cache-bytes", kv_bytes}));
      ASSERT_EQ(client().Status().model().context_length(), kContext);
      uint64_t guessed = 0;
      uint64_t right = 0;
      const auto count = [&](const ManyGeneration& generation) {
        const v1::Usage& usage = generation.end->finished().usage();
        guessed += usage.draft_tokens();
        right += usage.accepted_draft_tokens();
      };
      Generations crowd = RunAll(requests, /*cancel=*/true);
      for (const v1::GenerateRequest& request : requests) {
        const std::string& id = request.request_id();
        SCOPED_TRACE(request.ShortDebugString());
        ASSERT_TRUE(crowd[id].end && crowd[id].end->has_finished()) << crowd[id].error();
        if (id.starts_with("victim")) {
          ExpectPrefix(crowd[id], alone[id]);
        } else {
          ExpectSame(crowd[id], alone[id]);
        }
        count(crowd[id]);
        if (request.has_speculation()) {
          EXPECT_EQ(crowd[id].end->finished().usage().draft_tokens(), 0u);
        }
      }
      EXPECT_GT(client().Status().queue().preemptions(), 0u) << "nobody had to give way";

      Generations rests = RunAll(resumed, /*cancel=*/false);
      for (const v1::GenerateRequest& request : resumed) {
        const std::string& id = request.request_id();
        SCOPED_TRACE(request.ShortDebugString());
        std::vector<uint32_t> ids(request.resume_token_ids().begin(),
                                  request.resume_token_ids().end());
        ids.insert(ids.end(), rests[id].ids[0].begin(), rests[id].ids[0].end());
        EXPECT_EQ(ids, alone[id].ids[0]);
        ASSERT_TRUE(rests[id].end) << rests[id].error();
        EXPECT_EQ(rests[id].end->finished().reason(), alone[id].end->finished().reason());
        count(rests[id]);
      }
      // Left to itself, the worker guesses only where that pays.
      if (drafter.tokens > 0) {
        EXPECT_GT(guessed, 0u);
        EXPECT_TRUE(right > 0 || !drafter.is_good);
      }
      const v1::SpeculationFigures figures = client().Status().speculation();
      EXPECT_EQ(figures.draft_tokens(), guessed);
      EXPECT_EQ(figures.accepted_draft_tokens(), right);
      std::cout << how << ": " << right << " of " << guessed << " guesses were right\n";
      if (HasFailure()) return;
      ASSERT_NO_FATAL_FAILURE(StopWorker());
    }
  }
};

TEST_F(SpeculationCrowdTest, EveryStreamIsTheOneWithoutGuesses) {
  WriteNanoModel(models().File("other.gguf"), 2);
  ExpectCrowdsSame(
      "nano.gguf", "1152KiB",
      {{"ngram", 5}, {"ngram", 0}, {"nano.gguf", 3}, {"other.gguf", 16, /*is_good=*/false}});
}

TEST_F(SpeculationCrowdTest, AlsoWhereLayersHaveAWindow) {
  RandomModelOptions options;
  options.architecture = "gemma2";
  ASSERT_TRUE(WriteRandomModel(options, models().File("window.gguf")).ok());
  ExpectCrowdsSame("window.gguf", "7MiB", {{"ngram", 7}, {"window.gguf", 4}});
}

TEST_F(SpeculationCrowdTest, AlsoWhereTheModelPredictsItself) {
  RandomModelOptions options;
  options.architecture = "qwen35";
  ASSERT_TRUE(WriteRandomModel(options, models().File("block.gguf")).ok());
  ExpectCrowdsSame("block.gguf", "4608KiB", {{"mtp", 3, /*is_good=*/false}});
}

}  // namespace
}  // namespace orcd::testing
