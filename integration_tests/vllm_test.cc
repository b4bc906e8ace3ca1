// vllm.grpc.engine.VllmEngine, as gateways of vLLM workers use it: the same tokens and limits as
// orcd.v1, and clients that leave at any moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "integration_tests/http_get.h"
#include "integration_tests/test_models.h"
#include "integration_tests/vllm_client.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::Not;
using ::testing::SizeIs;

class VllmTest : public WorkerTest {
 protected:
  VllmClient& vllm() {
    if (vllm_ == nullptr) vllm_ = std::make_unique<VllmClient>(client().channel());
    return *vllm_;
  }

  void TearDown() override {
    vllm_ = nullptr;
    WorkerTest::TearDown();
  }

  static std::vector<uint32_t> Prompt(size_t tokens) {
    std::vector<uint32_t> ids;
    for (size_t i = 0; i < tokens; ++i) ids.push_back(static_cast<uint32_t>(40 + i % 200));
    return ids;
  }

  static v1::GenerateRequest Sampled(uint64_t seed, uint32_t tokens) {
    v1::GenerateRequest request = TokenRequest(Prompt(20), tokens);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_stop()->set_ignore_eog(true);
    return request;
  }

  static vllm_wire::GenerateRequest Endless(const std::string& id, bool stream) {
    v1::GenerateRequest request = Sampled(1, 1);
    request.set_request_id(id);
    request.mutable_stop()->clear_max_tokens();
    return ToVllm(request, stream);
  }

  // Everything is free now, without waiting.
  void ExpectQuiet() {
    const v1::WorkerStatus status = client().Status();
    EXPECT_EQ(status.queue().running_requests(), 0u);
    EXPECT_EQ(status.queue().waiting_requests(), 0u);
    EXPECT_GT(status.kv_blocks().total(), 0u);
    EXPECT_EQ(status.kv_blocks().free(), status.kv_blocks().total());
  }

  bool WaitForQueue(uint32_t running, uint32_t waiting) {
    return client().WaitForStatus([&](const v1::WorkerStatus& status) {
      return status.queue().running_requests() == running &&
             status.queue().waiting_requests() == waiting;
    });
  }

  std::map<std::string, double> Scrape() {
    const std::string text = HttpGet(worker().SideAddress("metrics"), "/metrics");
    std::map<std::string, double> samples;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      const size_t space = line.rfind(' ');
      double value = 0;
      if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
      if (absl::SimpleAtod(line.substr(space + 1), &value)) samples[line.substr(0, space)] = value;
    }
    return samples;
  }

 private:
  std::unique_ptr<VllmClient> vllm_;
};

// The ids without the one that ended the sample, which orcd.v1 omits.
std::vector<uint32_t> WithoutEnd(const VllmGeneration::Output& output, const Generation& ours) {
  std::vector<uint32_t> ids = output.ids;
  if (ours.finished->matched_case() == v1::GenerateFinished::kTokenId && !ids.empty()) {
    EXPECT_EQ(ids.back(), ours.finished->token_id());
    ids.pop_back();
  }
  return ids;
}

TEST_F(VllmTest, SameTokensAndFiguresAsByOrcdV1) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  std::vector<v1::GenerateRequest> requests;
  for (const uint64_t seed : {0u, 1u, 7u, 0x7FFFFFFFu}) {
    v1::GenerateRequest request = Sampled(seed, 40);
    request.mutable_stop()->set_ignore_eog(seed % 2 == 0);
    requests.push_back(request);
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_temperature(0.7f);
    sampling.set_temperature_first(true);
    sampling.set_top_p(0.9f);
    sampling.set_top_k(50);
    sampling.set_min_p(0.01f);
    sampling.set_repetition_penalty(1.1f);
    sampling.set_frequency_penalty(0.2f);
    sampling.set_presence_penalty(0.1f);
    (*sampling.mutable_logit_bias())[77] = 3;
    request.mutable_stop()->set_min_tokens(5);
    requests.push_back(request);
  }
  requests.push_back(Sampled(3, 30));
  requests.back().mutable_sampling()->set_temperature(0);
  for (const v1::GenerateRequest& request : requests) {
    SCOPED_TRACE(request.ShortDebugString());
    const Generation ours = client().Generate(request);
    ASSERT_TRUE(IsComplete(ours));
    for (const bool stream : {false, true}) {
      VllmGeneration theirs = vllm().Generate(ToVllm(request, stream));
      ASSERT_TRUE(IsComplete(theirs));
      EXPECT_EQ(WithoutEnd(theirs.first(), ours), ours.ids);
      const vllm_wire::GenerateComplete& complete = *theirs.first().complete;
      EXPECT_EQ(complete.completion_tokens(), ours.finished->usage().generated_tokens());
      EXPECT_EQ(complete.prompt_tokens(), ours.finished->usage().prompt_tokens());
      EXPECT_EQ(complete.finish_reason(),
                ours.reason() == v1::FINISH_REASON_MAX_TOKENS ? "length" : "stop");
      EXPECT_EQ(theirs.chunks > 0, stream);
      // The prompt has been in the cache since its first run.
      EXPECT_GT(complete.cached_tokens(), 0u);
    }
  }
  EXPECT_TRUE(client().WaitForQuiet());
}

TEST_F(VllmTest, TheEndOfTheModelsTurnCounts) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  const uint32_t eog = client().Status().model().eog_token_ids(0);
  v1::GenerateRequest request = Sampled(5, 40);
  request.mutable_stop()->set_ignore_eog(false);
  request.mutable_stop()->set_min_tokens(4);
  (*request.mutable_sampling()->mutable_logit_bias())[eog] = 1000;
  for (const bool stream : {false, true}) {
    VllmGeneration generation = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(generation));
    EXPECT_EQ(generation.first().reason(), "stop");
    EXPECT_THAT(generation.first().ids, SizeIs(5));
    EXPECT_EQ(generation.first().ids.back(), eog);
    EXPECT_EQ(generation.first().complete->matched_stop_case(),
              vllm_wire::GenerateComplete::MATCHED_STOP_NOT_SET);
  }
}

// As in vLLM, the penalties count generated tokens but not the prompt's.
TEST_F(VllmTest, FrequencyAndPresencePenaltiesDoNotSeeThePrompt) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  constexpr uint32_t kToken = 45;
  v1::GenerateRequest request = TokenRequest(std::vector<uint32_t>(30, kToken), 30);
  request.mutable_stop()->set_ignore_eog(true);
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  (*sampling.mutable_logit_bias())[kToken] = 1000;
  sampling.set_frequency_penalty(100);
  sampling.set_presence_penalty(50);
  for (const bool stream : {false, true}) {
    VllmGeneration generation = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(generation));
    const std::vector<uint32_t>& ids = generation.first().ids;
    EXPECT_THAT(std::vector<uint32_t>(ids.begin(), ids.begin() + 8), Each(kToken));
    EXPECT_LE(std::count(ids.begin(), ids.end(), kToken), 11);
  }
  const Generation ours = client().Generate(request);
  ASSERT_TRUE(IsComplete(ours));
  EXPECT_EQ(ours.ids, vllm().Generate(ToVllm(request, false)).first().ids);
  sampling.set_count_prompt(true);
  const Generation counted = client().Generate(request);
  ASSERT_TRUE(IsComplete(counted));
  EXPECT_THAT(counted.ids, Not(Contains(kToken)));
}

// The repetition penalty divides the logit of a token that is in the prompt, and of one that was
// generated.
TEST_F(VllmTest, TheRepetitionPenaltySeesPromptAndOutput) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  constexpr uint32_t kInPrompt = 45;
  constexpr uint32_t kOther = 46;
  v1::GenerateRequest request = TokenRequest(std::vector<uint32_t>(10, kInPrompt), 6);
  request.mutable_stop()->set_ignore_eog(true);
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  (*sampling.mutable_logit_bias())[kInPrompt] = 1000;
  (*sampling.mutable_logit_bias())[kOther] = 900;
  const auto ids = [&](bool stream) {
    VllmGeneration generation = vllm().Generate(ToVllm(request, stream));
    EXPECT_TRUE(IsComplete(generation));
    return generation.first().ids;
  };
  EXPECT_THAT(ids(false),
              ElementsAre(kInPrompt, kInPrompt, kInPrompt, kInPrompt, kInPrompt, kInPrompt));
  // 900 before 1000 / 2, as the prompt counts; then 1000 / 2 before 900 / 2, as the output does.
  sampling.set_repetition_penalty(2);
  for (const bool stream : {false, true}) {
    EXPECT_THAT(ids(stream),
                ElementsAre(kOther, kInPrompt, kInPrompt, kInPrompt, kInPrompt, kInPrompt));
  }
}

TEST_F(VllmTest, StopIdsHoldFromMinTokensOn) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  constexpr uint32_t kStop = 45;
  v1::GenerateRequest request = Sampled(5, 40);
  request.mutable_stop()->add_token_ids(kStop);
  (*request.mutable_sampling()->mutable_logit_bias())[kStop] = 1000;
  for (const uint32_t min_tokens : {0u, 4u}) {
    request.mutable_stop()->set_min_tokens(min_tokens);
    for (const bool stream : {false, true}) {
      VllmGeneration generation = vllm().Generate(ToVllm(request, stream));
      ASSERT_TRUE(IsComplete(generation));
      EXPECT_EQ(generation.first().reason(), "stop");
      EXPECT_EQ(generation.first().complete->matched_token_id(), kStop);
      const std::vector<uint32_t>& ids = generation.first().ids;
      ASSERT_THAT(ids, SizeIs(min_tokens + 1));
      EXPECT_EQ(std::count(ids.begin(), ids.end(), kStop), 1);
      EXPECT_EQ(ids.back(), kStop);
    }
  }
}

TEST_F(VllmTest, StopStringsHoldFromMinTokensOn) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest request = Sampled(2, 60);
  // Tokens that end the generation cannot be drawn before min_tokens; the bias excludes them here,
  // too.
  const v1::WorkerStatus status = client().Status();
  for (const uint32_t id : status.model().eog_token_ids()) {
    (*request.mutable_sampling()->mutable_logit_bias())[id] = -1000;
  }
  const Generation whole = client().Generate(request);
  ASSERT_TRUE(IsComplete(whole));
  // Many characters as stop strings, so that the generation ends early without min_tokens.
  const std::string characters = "etaoinsrhldcumfp";
  for (const char c : characters) request.mutable_stop()->add_strings(std::string(1, c));
  VllmGeneration early = vllm().Generate(ToVllm(request, false));
  ASSERT_TRUE(IsComplete(early));
  ASSERT_TRUE(early.first().complete->has_matched_stop_str()) << whole.text;
  const size_t at_least = early.first().ids.size();
  request.mutable_stop()->set_min_tokens(static_cast<uint32_t>(at_least));
  const Generation ours = client().Generate(request);
  ASSERT_TRUE(IsComplete(ours));
  for (const bool stream : {false, true}) {
    VllmGeneration later = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(later));
    const std::vector<uint32_t>& ids = later.first().ids;
    EXPECT_GT(ids.size(), at_least);
    EXPECT_EQ(ids, ours.ids);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), whole.ids.begin()));
  }
}

TEST_F(VllmTest, NegativeSeedsAreRandom) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  vllm_wire::GenerateRequest request = ToVllm(Sampled(1, 40), false);
  std::set<std::vector<uint32_t>> drawn;
  for (const int32_t seed : {-1, -1, -7, -7}) {
    request.mutable_sampling_params()->set_seed(seed);
    VllmGeneration generation = vllm().Generate(request);
    ASSERT_TRUE(IsComplete(generation));
    drawn.insert(generation.first().ids);
  }
  EXPECT_THAT(drawn, SizeIs(4));
}

TEST_F(VllmTest, TheTokenThatEndedItHasItsLogprobToo) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  const uint32_t eog = client().Status().model().eog_token_ids(0);
  v1::GenerateRequest request = Sampled(5, 40);
  request.mutable_stop()->set_ignore_eog(false);
  request.mutable_stop()->set_min_tokens(4);
  request.set_logprobs(2);
  (*request.mutable_sampling()->mutable_logit_bias())[eog] = 1000;
  const Generation ours = client().Generate(request);
  ASSERT_TRUE(IsComplete(ours));
  ASSERT_EQ(ours.reason(), v1::FINISH_REASON_EOG);
  const v1::TokenLogprobs& last = ours.finished->matched_logprobs();
  EXPECT_EQ(last.token_id(), eog);
  EXPECT_LT(last.logprob(), 0);
  EXPECT_EQ(last.top_size(), 2);
  for (const bool stream : {false, true}) {
    VllmGeneration generation = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(generation));
    const VllmGeneration::Output& output = generation.first();
    EXPECT_EQ(output.ids.back(), eog);
    EXPECT_EQ(output.logprob_ids, output.ids);
    EXPECT_EQ(output.logprobs.back(), last.logprob());
    EXPECT_EQ(output.top_logprobs.back().token_ids_size(), 2);
  }
}

TEST_F(VllmTest, SamplesAreThoseOfOrcdV1) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest request = Sampled(11, 25);
  request.set_samples(3);
  for (const bool stream : {false, true}) {
    VllmGeneration theirs = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(theirs, 3));
    for (uint32_t i = 0; i < 3; ++i) {
      const Generation alone = client().Generate(Sampled(11 + i, 25));
      ASSERT_TRUE(IsComplete(alone));
      EXPECT_EQ(theirs.outputs[i].ids, alone.ids);
      EXPECT_EQ(theirs.outputs[i].complete->completion_tokens(), 25u);
    }
  }
}

TEST_F(VllmTest, StopStringsEndItWithTheTokensOfTheMatch) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest request = Sampled(2, 60);
  const Generation whole = client().Generate(request);
  ASSERT_TRUE(IsComplete(whole));
  // Plain characters from the second half of its text.
  std::string stop;
  for (size_t i = whole.text.size() / 2; i < whole.text.size() && stop.size() < 2; ++i) {
    const char c = whole.text[i];
    if (c <= ' ' || c >= 0x7F) stop.clear();
    if (c > ' ' && c < 0x7F) stop += c;
  }
  ASSERT_THAT(stop, SizeIs(2)) << whole.text;
  request.mutable_stop()->add_strings("never in there, I hope");
  request.mutable_stop()->add_strings(stop);
  const Generation ours = client().Generate(request);
  ASSERT_EQ(ours.reason(), v1::FINISH_REASON_STOP_STRING);
  for (const bool stream : {false, true}) {
    VllmGeneration theirs = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(theirs));
    EXPECT_EQ(theirs.first().ids, ours.ids);
    EXPECT_EQ(theirs.first().reason(), "stop");
    EXPECT_EQ(theirs.first().complete->matched_stop_str(), stop);
  }
}

TEST_F(VllmTest, StopIdsEndItAndAreNamed) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest request = Sampled(2, 60);
  const Generation whole = client().Generate(request);
  ASSERT_TRUE(IsComplete(whole));
  const uint32_t stop = whole.ids[10];
  request.mutable_stop()->add_token_ids(stop);
  const Generation ours = client().Generate(request);
  ASSERT_EQ(ours.reason(), v1::FINISH_REASON_STOP_TOKEN);
  for (const bool stream : {false, true}) {
    VllmGeneration theirs = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(theirs));
    EXPECT_EQ(WithoutEnd(theirs.first(), ours), ours.ids);
    EXPECT_EQ(theirs.first().reason(), "stop");
    EXPECT_EQ(theirs.first().complete->matched_token_id(), stop);
  }
}

TEST_F(VllmTest, LogprobsAreThoseOfOrcdV1) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest request = Sampled(4, 15);
  request.set_logprobs(3);
  request.set_prompt_logprobs(2);
  const Generation ours = client().Generate(request);
  ASSERT_TRUE(IsComplete(ours));
  std::vector<v1::TokenLogprobs> prompt;
  for (const v1::GenerateDelta& delta : ours.deltas) {
    prompt.insert(prompt.end(), delta.prompt_logprobs().begin(), delta.prompt_logprobs().end());
  }
  for (const bool stream : {false, true}) {
    VllmGeneration theirs = vllm().Generate(ToVllm(request, stream));
    ASSERT_TRUE(IsComplete(theirs));
    const VllmGeneration::Output& output = theirs.first();
    ASSERT_THAT(output.logprobs, SizeIs(ours.logprobs.size()));
    ASSERT_THAT(output.top_logprobs, SizeIs(ours.logprobs.size()));
    for (size_t i = 0; i < ours.logprobs.size(); ++i) {
      EXPECT_EQ(output.logprob_ids[i], ours.logprobs[i].token_id());
      EXPECT_EQ(output.logprobs[i], ours.logprobs[i].logprob());
      ASSERT_EQ(output.top_logprobs[i].token_ids_size(), ours.logprobs[i].top_size());
      for (int t = 0; t < ours.logprobs[i].top_size(); ++t) {
        EXPECT_EQ(output.top_logprobs[i].token_ids(t), ours.logprobs[i].top(t).token_id());
        EXPECT_EQ(output.top_logprobs[i].values(t), ours.logprobs[i].top(t).logprob());
      }
    }
    const vllm_wire::InputLogProbs& input = theirs.input_logprobs;
    EXPECT_THAT(input.token_ids(), ElementsAreArray(request.tokens().ids()));
    ASSERT_EQ(input.token_logprobs_size(), static_cast<int>(prompt.size()) + 1);
    EXPECT_FALSE(input.token_logprobs(0).has_value());
    for (size_t i = 0; i < prompt.size(); ++i) {
      EXPECT_EQ(input.token_logprobs(static_cast<int>(i) + 1).value(), prompt[i].logprob());
      EXPECT_EQ(input.top_logprobs(static_cast<int>(i) + 1).token_ids_size(), prompt[i].top_size());
    }
  }
}

TEST_F(VllmTest, TextIsEncodedWithItsControlTokens) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest ours = TextRequest("<|im_start|>user\nHello<|im_end|>\n", 20);
  ours.mutable_text()->set_parse_special(true);
  ours.mutable_sampling()->set_seed(6);
  vllm_wire::GenerateRequest theirs = ToVllm(ours, false);
  theirs.set_text(ours.text().text());
  const Generation expected = client().Generate(ours);
  ASSERT_TRUE(IsComplete(expected));
  VllmGeneration generation = vllm().Generate(theirs);
  ASSERT_TRUE(IsComplete(generation));
  EXPECT_EQ(WithoutEnd(generation.first(), expected), expected.ids);
}

TEST_F(VllmTest, NoMoreTokensThanTheContextHolds) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-context", "64"}));
  for (const bool stream : {false, true}) {
    for (const int max_tokens : {-1, 10'000, 45}) {
      vllm_wire::GenerateRequest request = Endless("", stream);
      if (max_tokens > 0) {
        request.mutable_sampling_params()->set_max_tokens(static_cast<uint32_t>(max_tokens));
      }
      VllmGeneration generation = vllm().Generate(request);
      ASSERT_TRUE(IsComplete(generation));
      EXPECT_EQ(generation.first().ids.size(), 44u);
      EXPECT_EQ(generation.first().reason(), "length");
    }
  }
}

TEST_F(VllmTest, ZeroesThatMeanNothingWasSaid) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  // top_p, top_k, n, repetition_penalty and others are 0 on the wire.
  vllm_wire::GenerateRequest bare;
  for (const uint32_t id : Prompt(20)) bare.mutable_tokenized()->add_input_ids(id);
  bare.mutable_sampling_params()->set_max_tokens(20);
  bare.mutable_sampling_params()->set_seed(9);
  bare.mutable_sampling_params()->set_ignore_eos(true);
  VllmGeneration theirs = vllm().Generate(bare);
  ASSERT_TRUE(IsComplete(theirs));
  v1::GenerateRequest ours = Sampled(9, 20);
  ours.mutable_sampling()->set_temperature(1);
  EXPECT_EQ(theirs.first().ids, client().Generate(ours).ids);
}

TEST_F(VllmTest, AbortAnswersAfterTheReleaseAndTheStreamEndsWell) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-seqs", "2"}));
  for (const bool stream : {false, true}) {
    VllmCall running(vllm().stub(), Endless("running", stream));
    VllmCall other(vllm().stub(), Endless("other", stream));
    ASSERT_TRUE(WaitForQueue(2, 0));
    VllmCall queued(vllm().stub(), Endless("queued", stream));
    ASSERT_TRUE(WaitForQueue(2, 1));
    ASSERT_TRUE(vllm().Abort({"queued", "nobody"}).ok());
    EXPECT_EQ(client().Status().queue().waiting_requests(), 0u);
    VllmGeneration& gone = queued.Finish();
    EXPECT_TRUE(IsComplete(gone));
    EXPECT_EQ(gone.first().reason(), "abort");
    EXPECT_TRUE(gone.first().ids.empty());

    ASSERT_TRUE(running.ReadUntilTokens(stream ? 5 : 0));
    ASSERT_TRUE(vllm().Abort({"running", "other", "running"}).ok());
    ExpectQuiet();
    VllmGeneration& aborted = running.Finish();
    EXPECT_TRUE(IsComplete(aborted));
    EXPECT_EQ(aborted.first().reason(), "abort");
    EXPECT_EQ(aborted.first().complete->prompt_tokens(), 20u);
    EXPECT_GE(aborted.first().ids.size(), stream ? 5u : 0u);
    other.Finish();
  }
}

TEST_F(VllmTest, AbortOfIdsThatNobodyHasLeavesTheOthersAlone) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  VllmCall running(vllm().stub(), Endless("running", true));
  VllmCall nameless(vllm().stub(), Endless("", true));
  ASSERT_TRUE(running.ReadUntilTokens(1));
  ASSERT_TRUE(nameless.ReadUntilTokens(1));
  EXPECT_TRUE(vllm().Abort({}).ok());
  EXPECT_TRUE(vllm().Abort({""}).ok());
  EXPECT_TRUE(vllm().Abort({"runnin", "not an id\n", std::string(1000, 'x')}).ok());
  EXPECT_TRUE(vllm().Abort(std::vector<std::string>(4096, "nobody")).ok());
  EXPECT_EQ(client().Status().queue().running_requests(), 2u);
  EXPECT_TRUE(running.ReadUntilTokens(30));
  EXPECT_TRUE(nameless.ReadUntilTokens(30));
}

TEST_F(VllmTest, IdsAreOneSpaceWithOrcdV1) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  VllmCall first(vllm().stub(), Endless("same", true));
  ASSERT_TRUE(first.ReadUntilTokens(1));
  const VllmGeneration second = vllm().Generate(Endless("same", true));
  EXPECT_TRUE(IsError(second.error, StatusCode::ALREADY_EXISTS, "DUPLICATE_REQUEST_ID"));
  ASSERT_TRUE(first.ReadUntilTokens(20));
  bool found = false;
  ASSERT_TRUE(client().Cancel("same", &found).ok());
  EXPECT_TRUE(found);
  EXPECT_EQ(first.Finish().first().reason(), "abort");
  // The worker assigns an id to each request without one.
  VllmCall nameless(vllm().stub(), Endless("", true));
  VllmCall other(vllm().stub(), Endless("", true));
  EXPECT_TRUE(nameless.ReadUntilTokens(1));
  EXPECT_TRUE(other.ReadUntilTokens(1));
}

TEST_F(VllmTest, FullQueueIsResourceExhausted) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-seqs", "1", "--max-waiting", "1"}));
  VllmCall running(vllm().stub(), Endless("running", true));
  ASSERT_TRUE(running.ReadUntilTokens(1));
  VllmCall waiting(vllm().stub(), Endless("waiting", false));
  ASSERT_TRUE(WaitForQueue(1, 1));
  for (const bool stream : {false, true}) {
    const VllmGeneration refused = vllm().Generate(Endless("refused", stream));
    EXPECT_TRUE(IsError(refused.error, StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
    EXPECT_TRUE(refused.error.retry_delay);
  }
}

TEST_F(VllmTest, HealthIsReadinessAndAnErrorOtherwise) {
  WriteSlowToLoadModel(models().File("slow.gguf"));
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  EXPECT_TRUE(IsError(vllm().HealthCheck(), StatusCode::UNAVAILABLE, "NOT_READY"));
  EXPECT_TRUE(IsError(vllm().Generate(Endless("early", true)).error,
                      StatusCode::FAILED_PRECONDITION, "MODEL_NOT_LOADED"));
  // An Abort without a request to end succeeds.
  EXPECT_TRUE(vllm().Abort({"early"}).ok());
  EXPECT_EQ(vllm().Load().max_total_num_tokens(), 0);

  bool looked = false;
  v1::LoadRequest slow;
  slow.set_model("slow.gguf");
  client().Load(slow, absl::Seconds(120), [&](grpc::ClientContext& context, const auto&) {
    if (!looked) {
      EXPECT_TRUE(IsError(vllm().HealthCheck(), StatusCode::UNAVAILABLE, "NOT_READY"));
      EXPECT_TRUE(IsError(vllm().Generate(Endless("early", true)).error, StatusCode::UNAVAILABLE,
                          "LOADING"));
    }
    looked = true;
    context.TryCancel();
  });
  EXPECT_TRUE(looked);
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_IDLE));
  ASSERT_TRUE(client().Load("nano.gguf").error.ok());
  EXPECT_TRUE(vllm().HealthCheck().ok());
  EXPECT_TRUE(client().Unload(/*force=*/true).ok());
  EXPECT_TRUE(IsError(vllm().HealthCheck(), StatusCode::UNAVAILABLE, "NOT_READY"));
}

TEST_F(VllmTest, DrainEndsWhatRunsAndRefusesTheRest) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  VllmCall streaming(vllm().stub(), Endless("streaming", true));
  VllmCall whole(vllm().stub(), Endless("whole", false));
  ASSERT_TRUE(streaming.ReadUntilTokens(1));
  ASSERT_TRUE(WaitForQueue(2, 0));
  v1::DrainRequest request;
  request.mutable_timeout()->set_seconds(1);
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  auto drain = stub().Drain(&context, request);
  v1::DrainResponse progress;
  ASSERT_TRUE(drain->Read(&progress));
  EXPECT_TRUE(IsError(vllm().HealthCheck(), StatusCode::UNAVAILABLE, "NOT_READY"));
  EXPECT_TRUE(
      IsError(vllm().Generate(Endless("late", true)).error, StatusCode::UNAVAILABLE, "DRAINING"));
  EXPECT_TRUE(IsError(streaming.Finish().error, StatusCode::UNAVAILABLE, "DRAINED"));
  EXPECT_TRUE(IsError(whole.Finish().error, StatusCode::UNAVAILABLE, "DRAINED"));
  while (drain->Read(&progress)) {
  }
  EXPECT_TRUE(drain->Finish().ok());
  EXPECT_TRUE(progress.safe_to_delete());
}

TEST_F(VllmTest, FiguresAreTrue) {
  // The steps are slow enough for requests to last until they are aborted.
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--backend", "null", "--null-step", "50ms", "--max-seqs",
                                       "2", "--block-tokens", "16", "--max-context", "2000"}));
  const vllm_wire::SchedulerLoad idle = vllm().Load();
  EXPECT_EQ(idle.num_total_reqs(), 0);
  EXPECT_EQ(idle.token_usage(), 0);
  EXPECT_EQ(idle.max_running_requests(), 2);
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(idle.max_total_num_tokens(), static_cast<int32_t>(status.kv_blocks().total() * 16));

  VllmCall first(vllm().stub(), Endless("first", true));
  VllmCall second(vllm().stub(), Endless("second", true));
  ASSERT_TRUE(first.ReadUntilTokens(1));
  ASSERT_TRUE(second.ReadUntilTokens(1));
  VllmCall waiting(vllm().stub(), Endless("waiting", true));
  ASSERT_TRUE(WaitForQueue(2, 1));
  const vllm_wire::SchedulerLoad busy = vllm().Load();
  EXPECT_EQ(busy.num_running_reqs(), 2);
  EXPECT_EQ(busy.num_waiting_reqs(), 1);
  EXPECT_EQ(busy.num_total_reqs(), 3);
  EXPECT_EQ(busy.num_waiting_uncached_tokens(), 20);
  EXPECT_GT(busy.num_used_tokens(), 0);
  EXPECT_DOUBLE_EQ(busy.token_usage(),
                   static_cast<double>(busy.num_used_tokens()) / busy.max_total_num_tokens());
  EXPECT_TRUE(Wait([&] { return vllm().Load().gen_throughput() > 0; }));

  grpc::ClientContext info_context;
  vllm_wire::GetServerInfoResponse server;
  ASSERT_TRUE(
      vllm().stub().GetServerInfo(&info_context, vllm_wire::GetServerInfoRequest(), &server).ok());
  EXPECT_EQ(server.active_requests(), 3u);
  EXPECT_EQ(server.max_num_seqs(), 2);
  EXPECT_EQ(server.block_size(), 16);
  grpc::ClientContext model_context;
  vllm_wire::GetModelInfoResponse model;
  ASSERT_TRUE(
      vllm().stub().GetModelInfo(&model_context, vllm_wire::GetModelInfoRequest(), &model).ok());
  EXPECT_EQ(model.served_model_name(), "nano");
  EXPECT_EQ(model.max_context_length(), 2000u);
  EXPECT_EQ(model.vocab_size(), status.model().vocab());
  EXPECT_EQ(model.model_type(), "qwen2");
  EXPECT_THAT(model.eos_token_ids(), ElementsAreArray(status.model().eog_token_ids()));
  ASSERT_TRUE(vllm().Abort({"first", "second", "waiting"}).ok());
  EXPECT_EQ(vllm().Load().num_used_tokens(), 0);
}

TEST_F(VllmTest, ModelInfoWithoutAModelIsAnError) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  grpc::ClientContext context;
  vllm_wire::GetModelInfoResponse model;
  EXPECT_TRUE(IsError(
      DecodeError(vllm().stub().GetModelInfo(&context, vllm_wire::GetModelInfoRequest(), &model)),
      StatusCode::FAILED_PRECONDITION, "MODEL_NOT_LOADED"));
}

TEST_F(VllmTest, TheFlagTurnsItOff) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--no-vllm"}));
  EXPECT_EQ(vllm().Generate(Endless("nobody", true)).error.code, StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(IsComplete(client().Generate(Sampled(1, 3))));
}

TEST_F(VllmTest, CallersNeedTheSamePermissions) {
  const std::string inference(32, 'i');
  const std::string control(32, 'c');
  const std::string path = models().File("tokens");
  std::ofstream(path) << "inference " << inference << "\ncontrol " << control << "\n";
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--token-file", path}));
  const auto generate = [&](const std::string& token) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    auto reader = vllm().stub().Generate(&context, Endless("x", true));
    vllm_wire::GenerateResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return DecodeError(reader->Finish());
  };
  const auto abort = [&](const std::string& token) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    vllm_wire::AbortResponse response;
    return DecodeError(vllm().stub().Abort(&context, vllm_wire::AbortRequest(), &response));
  };
  const auto loads = [&](const std::string& token) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    vllm_wire::GetLoadsResponse response;
    return DecodeError(vllm().stub().GetLoads(&context, vllm_wire::GetLoadsRequest(), &response));
  };
  EXPECT_TRUE(IsError(generate(""), StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(abort(""), StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(loads(""), StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(vllm().HealthCheck(), StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(generate(control), StatusCode::PERMISSION_DENIED, "PERMISSION_DENIED"));
  EXPECT_TRUE(IsError(abort(control), StatusCode::PERMISSION_DENIED, "PERMISSION_DENIED"));
  EXPECT_TRUE(loads(control).ok());
  EXPECT_TRUE(IsError(generate(inference), StatusCode::FAILED_PRECONDITION, "MODEL_NOT_LOADED"));
  EXPECT_TRUE(abort(inference).ok());
}

TEST_F(VllmTest, RequestsAreMeasuredAsThoseOfOrcdV1) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--metrics-listen", "127.0.0.1:0"}));
  ASSERT_TRUE(IsComplete(vllm().Generate(ToVllm(Sampled(1, 7), true))));
  ASSERT_TRUE(IsComplete(vllm().Generate(ToVllm(Sampled(1, 7), false))));
  vllm_wire::GenerateRequest cut = Endless("cut", true);
  cut.mutable_sampling_params()->set_truncate_prompt_tokens(5);
  EXPECT_TRUE(IsError(vllm().Generate(cut).error, StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
                      "sampling_params.truncate_prompt_tokens"));
  EXPECT_TRUE(Wait([&] {
    std::map<std::string, double> samples = Scrape();
    return samples["orcd_generated_tokens_total"] == 14 &&
           samples["orcd_request_e2e_seconds_count"] == 2 &&
           samples["orcd_rejections_total{reason=\"INVALID_FIELD\"}"] == 1;
  }));
}

// 500 clients leave at random moments: in the queue, in prefill, in decode, streaming or not, by
// hanging up or by Abort. No new step includes a request whose client has left: its slot and blocks
// are free once the running steps end.
TEST_F(VllmTest, ARequestOfALeftClientIsInNoFurtherStep) {
  // The null backend has two steps in flight, as the GPU backend has. The histogram's bucket holds
  // releases after two steps, but not after a third; a busy machine has half a step to be late.
  constexpr int kClients = kSanitized ? 100 : 500;
  const absl::Duration step = kSanitized ? absl::Seconds(2) : absl::Milliseconds(400);
  const std::string bucket = kSanitized ? "5" : "1";
  constexpr int kThreads = 40;
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--backend", "null", "--null-step", absl::FormatDuration(step), "--max-seqs",
                   "32", "--max-step-tokens", "400", "--metrics-listen", "127.0.0.1:0"}));
  VllmClient& own = vllm();
  std::atomic<int> next = 0;
  std::atomic<int> before_tokens = 0;
  std::atomic<int> after_tokens = 0;
  std::atomic<int> aborted = 0;
  std::atomic<int> hung_up = 0;
  const auto play = [&] {
    for (int i = next++; i < kClients; i = next++) {
      std::minstd_rand random(static_cast<uint32_t>(i) * 2654435761U + 1);
      const bool stream = random() % 2 == 0;
      const bool aborts = random() % 2 == 0;
      const bool awaits_token = random() % 2 == 0;
      const absl::Duration stay = step * (random() % (kSanitized ? 2500 : 5000)) / 1000;
      v1::GenerateRequest request = TokenRequest(Prompt(1 + random() % 600), 1);
      request.set_request_id(absl::StrCat("leaver-", i));
      request.mutable_stop()->set_ignore_eog(true);
      request.mutable_stop()->clear_max_tokens();
      VllmCall call(own.stub(), ToVllm(request, stream), absl::Minutes(5));
      if (stream && awaits_token) {
        EXPECT_TRUE(call.ReadUntilTokens(1));
      }
      std::thread leave([&] {
        absl::SleepFor(stay);
        if (!aborts) return call.HangUp();
        EXPECT_TRUE(own.Abort({request.request_id()}).ok());
        // An Abort that came before its request found no request to end.
        call.HangUp();
      });
      VllmGeneration& generation = call.Finish();
      leave.join();
      ++(aborts ? aborted : hung_up);
      if (stream) ++(generation.chunks == 0 ? before_tokens : after_tokens);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(play);
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(client().WaitForQuiet());
  ExpectQuiet();

  // Clients of every kind took part.
  EXPECT_GT(before_tokens, kClients / 20);
  EXPECT_GT(after_tokens, kClients / 20);
  EXPECT_GT(aborted, kClients / 4);
  EXPECT_GT(hung_up, kClients / 4);
  // Each request that the worker has heard of was released; clients may leave before that.
  std::map<std::string, double> samples;
  double released = 0;
  EXPECT_TRUE(Wait([&] {
    samples = Scrape();
    released = samples["orcd_cancel_to_release_seconds_count"];
    return released == samples["orcd_request_e2e_seconds_count"];
  })) << released
      << " of " << samples["orcd_request_e2e_seconds_count"];
  EXPECT_GT(released, kClients / 2);
  EXPECT_EQ(samples["orcd_cancel_to_release_seconds_bucket{le=\"" + bucket + "\"}"], released);
  EXPECT_TRUE(vllm().HealthCheck().ok());
}

}  // namespace
}  // namespace orcd::testing
