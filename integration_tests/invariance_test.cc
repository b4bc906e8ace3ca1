// A request gets the same tokens and text alone, in a crowd, after preemption, with a prompt in the
// prefix cache, resumed from the middle, and over either call.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/many_call.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

constexpr int kRequests = kSanitized ? 12 : 48;
constexpr int kBlockTokens = 4;
// So few blocks that requests of up to 120 tokens preempt each other.
constexpr int kBlocks = 64;

class InvarianceTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-seqs", "1", "--block-tokens", "4"}));
    const v1::WorkerStatus status = client().Status();
    block_bytes_ = status.memory().kv_bytes() / status.kv_blocks().total();
    vocab_ = status.model().vocab();
    std::mt19937 random(11);
    for (int i = 0; i < kRequests; ++i) {
      requests_.push_back(RandomRequest(random));
      v1::GenerateRequest alone = requests_.back();
      alone.mutable_cache()->set_disabled(true);
      alone_.push_back(client().Generate(alone));
      ASSERT_TRUE(IsComplete(alone_.back())) << alone.DebugString();
    }
  }

  void StartCrowded() {
    StopWorker();
    ASSERT_NO_FATAL_FAILURE(StartLoaded(
        {"--max-seqs", "8", "--max-waiting-tokens", "100000", "--block-tokens", "4",
         "--max-step-tokens", "24", "--kv-cache-bytes", absl::StrCat(kBlocks * block_bytes_)}));
    ASSERT_EQ(client().Status().kv_blocks().total(), static_cast<uint32_t>(kBlocks));
  }

  v1::GenerateRequest RandomRequest(std::mt19937& random) const {
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    // Some prompts share a prefix.
    std::mt19937 beginning(below(3));
    std::vector<uint32_t> ids(1 + below(60));
    const size_t shared = below(2) == 0 ? ids.size() : below(40);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<uint32_t>((i < shared ? beginning() : random()) % vocab_);
    }
    v1::GenerateRequest request = TokenRequest(ids, 1 + below(60));
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_seed(random());
    sampling.set_temperature(static_cast<float>(below(13)) / 10);
    if (below(3) == 0) sampling.set_top_k(1 + below(50));
    if (below(3) == 0) sampling.set_top_p(0.8f);
    if (below(3) == 0) sampling.set_repetition_penalty(1.2f);
    if (below(3) == 0) sampling.set_frequency_penalty(0.5f);
    if (below(4) == 0) (*sampling.mutable_logit_bias())[below(vocab_)] = 2;
    request.mutable_stop()->set_ignore_eog(below(2) == 0);
    if (below(3) == 0) {
      request.mutable_stop()->set_min_tokens(below(1 + request.stop().max_tokens()));
    }
    if (below(4) == 0) request.mutable_stop()->add_strings("e");
    if (below(4) == 0) request.set_logprobs(2);
    request.set_priority(below(21) - 10);
    return request;
  }

  void ExpectSame(const Generation& generation, size_t i, const std::string& how) {
    EXPECT_TRUE(IsComplete(generation)) << how << " " << i;
    EXPECT_EQ(generation.ids, alone_[i].ids) << how << " " << i;
    EXPECT_EQ(generation.text, alone_[i].text) << how << " " << i;
    EXPECT_EQ(generation.reason(), alone_[i].reason()) << how << " " << i;
    ASSERT_EQ(generation.logprobs.size(), alone_[i].logprobs.size());
    for (size_t t = 0; t < generation.logprobs.size(); ++t) {
      EXPECT_EQ(generation.logprobs[t].SerializeAsString(),
                alone_[i].logprobs[t].SerializeAsString());
    }
  }

  uint64_t block_bytes_ = 0;
  int vocab_ = 0;
  std::vector<v1::GenerateRequest> requests_;
  std::vector<Generation> alone_;
};

TEST_F(InvarianceTest, TokensDependOnTheRequestAlone) {
  ASSERT_NO_FATAL_FAILURE(StartCrowded());
  // Runs two crowds, so that the second finds its prefixes in the cache, and further ones until a
  // request was preempted, which happens only if requests arrive together.
  const auto preemptions = [&] { return client().Status().queue().preemptions(); };
  constexpr int kMostCrowds = 20;
  for (int crowds = 0; crowds < 2 || (preemptions() == 0 && crowds < kMostCrowds); ++crowds) {
    const std::string how = absl::StrCat("in crowd ", crowds);
    std::vector<std::future<Generation>> crowd;
    for (const v1::GenerateRequest& request : requests_) {
      crowd.push_back(std::async(std::launch::async, [&] { return client().Generate(request); }));
    }
    for (size_t i = 0; i < crowd.size(); ++i) ExpectSame(crowd[i].get(), i, how);
    EXPECT_TRUE(client().WaitForQuiet());
  }
  EXPECT_GT(preemptions(), 0u) << "nobody had to give way";
  EXPECT_GT(client().Status().queue().cached_prompt_tokens(), 0u) << "nothing was shared";

  // One after another, each prompt twice in a row.
  int cached = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    client().Generate(requests_[i]);
    const Generation again = client().Generate(requests_[i]);
    ExpectSame(again, i, "seen before");
    const int prompt = requests_[i].tokens().ids_size();
    EXPECT_EQ(again.started->cached_prompt_tokens(), (prompt - 1) / kBlockTokens * kBlockTokens);
    cached += again.started->cached_prompt_tokens() > 0 ? 1 : 0;
  }
  EXPECT_GT(cached, kRequests / 2);
}

TEST_F(InvarianceTest, OverOneCallForAll) {
  ASSERT_NO_FATAL_FAILURE(StartCrowded());
  ManyCall call(stub());
  for (size_t i = 0; i < requests_.size(); ++i) {
    v1::GenerateRequest request = requests_[i];
    request.set_request_id(absl::StrCat(i));
    ASSERT_TRUE(call.Generate(request));
  }
  call.CloseRequests();
  EXPECT_TRUE(call.Finish().ok());
  for (size_t i = 0; i < requests_.size(); ++i) {
    ManyGeneration& generation = call.by_id()[absl::StrCat(i)];
    EXPECT_EQ(generation.violation, "") << i;
    EXPECT_TRUE(generation.error().ok()) << generation.error();
    EXPECT_EQ(generation.ids[0], alone_[i].ids) << i;
    EXPECT_EQ(generation.text[0], alone_[i].text) << i;
  }
  EXPECT_TRUE(client().WaitForQuiet());
}

TEST_F(InvarianceTest, ResumedWhereverItWasCut) {
  ASSERT_NO_FATAL_FAILURE(StartCrowded());
  std::mt19937 random(3);
  int resumed = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const std::vector<uint32_t>& ids = alone_[i].ids;
    // The cut leaves at least one token, so that the resumed request reaches the same end, such as
    // a stop string.
    if (ids.size() < 2) continue;
    const size_t cut = 1 + random() % (ids.size() - 1);
    v1::GenerateRequest request = requests_[i];
    for (size_t t = 0; t < cut; ++t) request.add_resume_token_ids(ids[t]);
    const Generation rest = client().Generate(request);
    ASSERT_TRUE(IsComplete(rest)) << i;
    EXPECT_EQ(rest.ids, std::vector<uint32_t>(ids.begin() + static_cast<int>(cut), ids.end()))
        << i << " cut at " << cut;
    EXPECT_TRUE(alone_[i].text.ends_with(rest.text)) << i << " cut at " << cut;
    EXPECT_EQ(rest.reason(), alone_[i].reason()) << i;
    ++resumed;
  }
  EXPECT_GT(resumed, kRequests / 3);
}

TEST_F(InvarianceTest, SamplesAreRequestsWithTheNextSeeds) {
  ASSERT_NO_FATAL_FAILURE(StartCrowded());
  ManyCall call(stub());
  constexpr int kSamples = 5;
  for (int i = 0; i < 6; ++i) {
    v1::GenerateRequest request = requests_[i];
    request.set_request_id(absl::StrCat(i));
    request.set_samples(kSamples);
    ASSERT_TRUE(call.Generate(request));
  }
  call.CloseRequests();
  EXPECT_TRUE(call.Finish().ok());
  for (int i = 0; i < 6; ++i) {
    ManyGeneration& generation = call.by_id()[absl::StrCat(i)];
    ASSERT_EQ(generation.violation, "");
    ASSERT_TRUE(generation.end && generation.end->has_finished()) << generation.error();
    ASSERT_EQ(generation.end->finished().samples_size(), kSamples);
    for (int sample = 0; sample < kSamples; ++sample) {
      v1::GenerateRequest request = requests_[i];
      request.mutable_sampling()->set_seed(request.sampling().seed() + sample);
      const Generation own = client().Generate(request);
      EXPECT_EQ(generation.ids[sample], own.ids) << i << " sample " << sample;
      EXPECT_EQ(generation.text[sample], own.text) << i << " sample " << sample;
      EXPECT_EQ(generation.end->finished().samples(sample).reason(), own.reason());
    }
  }
}

TEST_F(InvarianceTest, PromptLogprobsAreThoseOfTheSameTokensDrawn) {
  // Tokens drawn with log-probabilities get the same log-probabilities as a prompt.
  v1::GenerateRequest request = TokenRequest({5, 6, 7}, 20);
  request.mutable_sampling()->set_seed(4);
  request.mutable_stop()->set_ignore_eog(true);
  request.set_logprobs(2);
  const Generation drawn = client().Generate(request);
  ASSERT_TRUE(IsComplete(drawn));
  ASSERT_EQ(drawn.logprobs.size(), 20u);
  std::vector<uint32_t> ids = {5, 6, 7};
  ids.insert(ids.end(), drawn.ids.begin(), drawn.ids.end());
  v1::GenerateRequest prompt = TokenRequest(ids, 1);
  prompt.set_prompt_logprobs(2);
  GenerateCall call(stub(), prompt, absl::Seconds(60));
  const Generation& generation = call.Finish();
  ASSERT_TRUE(IsComplete(generation));
  std::vector<v1::TokenLogprobs> scored;
  for (const v1::GenerateDelta& delta : generation.deltas) {
    scored.insert(scored.end(), delta.prompt_logprobs().begin(), delta.prompt_logprobs().end());
  }
  ASSERT_EQ(scored.size(), ids.size() - 1);
  for (size_t i = 0; i < drawn.logprobs.size(); ++i) {
    EXPECT_EQ(scored[2 + i].SerializeAsString(), drawn.logprobs[i].SerializeAsString()) << i;
  }
}

}  // namespace
}  // namespace orcd::testing
