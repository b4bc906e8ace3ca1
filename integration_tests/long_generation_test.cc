// A long generation ends or continues sensibly. An engine whose numbers drift with the position
// falls into loops or noise long before a thousand tokens.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/haiku.h"
#include "integration_tests/real_model_fixture.h"
#include "integration_tests/token_repetition.h"

namespace orcd::testing {
namespace {

TEST(TokenRepetitionTest, FindsTheLongestRun) {
  const auto run = [](std::vector<uint32_t> tokens) { return LongestRepeatedRun(tokens, 10); };
  EXPECT_EQ(run({}).length, 0u);
  EXPECT_EQ(run({1, 2, 3, 1, 4}).length, 0u);
  EXPECT_EQ(run({1, 7, 7, 2}).length, 2u);
  EXPECT_EQ(run({7, 7, 7, 7, 7}).length, 5u);
  EXPECT_EQ(run({7, 7, 7, 7, 7}).period, 1u);
  const RepeatedRun mixed = run({9, 1, 2, 3, 1, 2, 3, 1, 5, 5});
  EXPECT_EQ(mixed.begin, 1u);
  EXPECT_EQ(mixed.length, 7u);
  EXPECT_EQ(mixed.period, 3u);
}

TEST(TokenRepetitionTest, DistinctShareIsOfAllTokens) {
  EXPECT_EQ(DistinctShare(std::vector<uint32_t>{}), 1);
  EXPECT_EQ(DistinctShare(std::vector<uint32_t>{1, 1, 2, 2}), 0.5);
}

using LongGenerationTest = RealModelTest;

TEST_F(LongGenerationTest, EndsOrGoesOnSensibly) {
  constexpr size_t kTokens = 1000;
  ASSERT_NO_FATAL_FAILURE(Load());
  v1::GenerateRequest request = ChatRequest(
      "Write a long and detailed tutorial on implementing a hash table in C, with complete code "
      "for every operation, an explanation of each function, tests, and a discussion of "
      "performance.",
      kTokens);
  v1::SamplingParams* sampling = request.mutable_sampling();
  // The model card's recommendation for models of this size.
  sampling->set_temperature(0.7f);
  sampling->set_top_p(0.8f);
  sampling->set_top_k(20);
  sampling->set_repetition_penalty(1.1f);
  sampling->set_seed(20250101);
  const Generation generation = client().Generate(request, absl::Seconds(900));
  ASSERT_TRUE(IsComplete(generation));

  const RepeatedRun run = LongestRepeatedRun(generation.ids, 200);
  const RepeatedRun one_token = LongestRepeatedRun(generation.ids, 1);
  const double distinct = DistinctShare(generation.ids);
  nlohmann::json artifact = Describe(generation);
  artifact["longest_repeated_run"] = {
      {"begin", run.begin}, {"length", run.length}, {"period", run.period}};
  artifact["longest_run_of_one_token"] = one_token.length;
  artifact["distinct_share"] = distinct;
  std::ofstream(ArtifactDir("long_generation") / "generation.json") << artifact.dump(2) << "\n";
  std::cout << generation.ids.size() << " tokens, "
            << v1::FinishReason_Name(generation.finished->reason())
            << "; longest repeated run: " << run.length << " tokens of period " << run.period
            << " at " << run.begin << "; longest run of one token: " << one_token.length
            << "; distinct tokens: " << distinct << "\n";

  // The prompt asks for a long text, so an end within a few words is no answer.
  EXPECT_GT(generation.ids.size(), 200u);
  EXPECT_LE(one_token.length, 20u);
  // A table or an array may repeat itself for a while; a model in a loop never leaves it.
  EXPECT_LT(run.length, generation.ids.size() / 4);
  EXPECT_GT(distinct, 0.1);
  EXPECT_EQ(generation.text.find("\xEF\xBF\xBD"), std::string::npos) << "broken characters";
}

}  // namespace
}  // namespace orcd::testing
