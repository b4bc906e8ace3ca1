#include "runtime/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cpu/matrix_for_test.h"

namespace orcd::cpu {
namespace {

using ::testing::ElementsAre;

std::vector<ChosenExpert> Choose(const ExpertsSpec& spec, const std::vector<float>& logits,
                                 const std::vector<float>& bias = {}) {
  std::vector<ChosenExpert> chosen(spec.used);
  ChooseExperts(spec, logits, bias, chosen);
  return chosen;
}

std::vector<int> ExpertsOf(const std::vector<ChosenExpert>& chosen) {
  std::vector<int> experts;
  for (const ChosenExpert& choice : chosen) experts.push_back(choice.expert);
  return experts;
}

std::vector<float> WeightsOf(const std::vector<ChosenExpert>& chosen) {
  std::vector<float> weights;
  for (const ChosenExpert& choice : chosen) weights.push_back(choice.weight);
  return weights;
}

// The rules of ExpertsSpec in the plainest way: one expert after the other, by sorting pairs.
std::vector<std::pair<int, double>> ByTheRules(const ExpertsSpec& spec,
                                               const std::vector<float>& logits,
                                               const std::vector<float>& bias) {
  std::vector<double> scores(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  for (double& score : scores) {
    if (spec.score == RouterScore::kSoftmax) score = std::exp(score) / sum;
    if (spec.score == RouterScore::kSigmoid) score = 1 / (1 + std::exp(-score));
  }
  const int size = spec.count / spec.groups;
  std::vector<std::pair<double, int>> groups;  // By negative score, then by index.
  for (int group = 0; group < spec.groups; ++group) {
    std::vector<double> of_group;
    for (int e = group * size; e < (group + 1) * size; ++e) {
      of_group.push_back(scores[e] + (bias.empty() ? 0.0 : double{bias[e]}));
    }
    std::sort(of_group.rbegin(), of_group.rend());
    groups.emplace_back(-of_group[0] - (size > 1 ? of_group[1] : 0.0), group);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, int>> experts;
  for (int i = 0; i < spec.groups_used; ++i) {
    for (int e = groups[i].second * size; e < (groups[i].second + 1) * size; ++e) {
      experts.emplace_back(-scores[e] - (bias.empty() ? 0.0 : double{bias[e]}), e);
    }
  }
  std::sort(experts.begin(), experts.end());
  std::vector<std::pair<int, double>> chosen;
  for (int i = 0; i < spec.used; ++i) {
    const int e = experts[i].second;
    const bool raw = spec.score == RouterScore::kSoftmaxOfChosen;
    chosen.emplace_back(e, raw ? std::exp(double{logits[e]}) : scores[e]);
  }
  std::sort(chosen.begin(), chosen.end());
  double of_chosen = 0;
  for (const auto& choice : chosen) of_chosen += choice.second;
  for (auto& choice : chosen) {
    if (spec.score == RouterScore::kSoftmaxOfChosen) choice.second /= of_chosen;
    if (spec.normalise) choice.second /= of_chosen;
    choice.second *= double{spec.scale};
  }
  return chosen;
}

TEST(RouterTest, FollowsTheRules) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < 3000; ++i) {
    ExpertsSpec spec;
    spec.groups = 1 << below(4);
    spec.groups_used = 1 + below(spec.groups);
    const int size = 1 + below(17);
    spec.count = spec.groups * size;
    spec.used = 1 + below(std::min(spec.groups_used * size, 12));
    spec.score = static_cast<RouterScore>(below(3));
    // The softmax of the chosen is normalised already.
    spec.normalise = spec.score != RouterScore::kSoftmaxOfChosen && below(2) == 0;
    spec.scale = below(2) == 0 ? 1.0f : 2.5f;
    const std::vector<float> logits = RandomFloats(spec.count, random(), 2.0f);
    const std::vector<float> bias =
        below(2) == 0 ? std::vector<float>() : RandomFloats(spec.count, random(), 0.3f);
    const auto expected = ByTheRules(spec, logits, bias);
    const std::vector<ChosenExpert> chosen = Choose(spec, logits, bias);
    for (size_t j = 0; j < expected.size(); ++j) {
      ASSERT_EQ(chosen[j].expert, expected[j].first) << "case " << i << ", choice " << j;
      ASSERT_NEAR(chosen[j].weight, expected[j].second, 1e-7 * std::abs(expected[j].second))
          << "case " << i << ", choice " << j;
    }
  }
}

TEST(RouterTest, OfTwoEqualScoresTheLowerIndexIsChosen) {
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxOfChosen}) {
    ExpertsSpec spec = {.count = 6, .used = 3, .score = score};
    EXPECT_THAT(ExpertsOf(Choose(spec, {1, 1, 1, 1, 1, 1})), ElementsAre(0, 1, 2));
    EXPECT_THAT(ExpertsOf(Choose(spec, {0, 1, 0, 2, 1, 1})), ElementsAre(1, 3, 4));
    EXPECT_THAT(ExpertsOf(Choose(spec, {5, 1, 2, 1, 2, 1})), ElementsAre(0, 2, 4));
    // The bias makes the first three equal.
    if (score == RouterScore::kSoftmaxOfChosen) {
      EXPECT_THAT(ExpertsOf(Choose({.count = 4, .used = 1, .score = score}, {0, 1, 0.5f, 0},
                                   {1, 0, 0.5f, 0.5f})),
                  ElementsAre(0));
    }
  }
  // Groups of two with the sums 3, 4, 4 and 4.
  const ExpertsSpec groups = {
      .count = 8, .used = 3, .score = RouterScore::kSoftmaxOfChosen, .groups = 4, .groups_used = 2};
  EXPECT_THAT(ExpertsOf(Choose(groups, {2, 1, 1, 3, 2, 2, 4, 0})), ElementsAre(3, 4, 5));
}

TEST(RouterTest, AGroupCountsItsTwoGreatestScores) {
  ExpertsSpec spec = {
      .count = 6, .used = 2, .score = RouterScore::kSoftmaxOfChosen, .groups = 2, .groups_used = 1};
  // The greatest score is in the second group, the greatest pair in the first.
  EXPECT_THAT(ExpertsOf(Choose(spec, {0, 5, 4, 6, 1, 2})), ElementsAre(1, 2));
  EXPECT_THAT(ExpertsOf(Choose(spec, {0, 5, 2, 6, 1, 2})), ElementsAre(3, 5));
  // Three of a group would have the greatest sum.
  EXPECT_THAT(ExpertsOf(Choose(spec, {3, 3, 3, 6, 1, 0})), ElementsAre(3, 4));
  // Groups of one expert have its score.
  spec.groups = 6;
  spec.groups_used = 3;
  EXPECT_THAT(ExpertsOf(Choose(spec, {0, 5, 4, 6, 1, 2})), ElementsAre(1, 3));
}

TEST(RouterTest, TheSelectionBiasIsNoPartOfTheWeights) {
  const ExpertsSpec spec = {.count = 4, .used = 2, .score = RouterScore::kSigmoid};
  const auto chosen = Choose(spec, {0, 2, -2, 1}, {0, -1, 1, 0});
  EXPECT_THAT(ExpertsOf(chosen), ElementsAre(2, 3));
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(1 / (1 + std::exp(2.0))));
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(1 / (1 + std::exp(-1.0))));
}

TEST(RouterTest, ATinySumOfWeightsIsNotDividedBy) {
  const ExpertsSpec spec = {
      .count = 3, .used = 2, .score = RouterScore::kSigmoid, .normalise = true};
  const auto chosen = Choose(spec, {-20, -21, -30});
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(1 / (1 + std::exp(20.0)) / 0x1p-14));
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(1 / (1 + std::exp(21.0)) / 0x1p-14));
}

TEST(RouterTest, LargeLogitsDoNotOverflow) {
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxOfChosen}) {
    const ExpertsSpec spec = {.count = 4, .used = 1, .score = score, .normalise = true};
    const auto chosen = Choose(spec, {-3e38f, -1e30f, 3e38f, 1e30f});
    // Sigmoids of both are 1.
    EXPECT_THAT(ExpertsOf(chosen), ElementsAre(2));
    EXPECT_THAT(WeightsOf(chosen), ElementsAre(1));
  }
}

TEST(RouterTest, AllExpertsMayBeUsed) {
  const ExpertsSpec spec = {.count = 3, .used = 3};
  const auto chosen = Choose(spec, {0, 1, 2});
  EXPECT_THAT(ExpertsOf(chosen), ElementsAre(0, 1, 2));
  const double sum = 1 + std::exp(1.0) + std::exp(2.0);
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(std::exp(1.0) / sum));
}

TEST(RouterTest, ANanShowsInTheWeights) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxOfChosen}) {
    for (const bool normalise : {false, true}) {
      for (const int groups : {1, 3}) {
        const ExpertsSpec spec = {.count = 9,
                                  .used = 2,
                                  .score = score,
                                  .groups = groups,
                                  .groups_used = 1,
                                  .normalise = normalise};
        for (int at = 0; at < 9; ++at) {
          std::vector<float> logits = {1, 5, 2, 7, 3, 9, 0, 4, -kInf};
          logits[at] = NAN;
          const auto chosen = Choose(spec, logits);
          bool shows = false;
          for (const ChosenExpert& choice : chosen) {
            ASSERT_GE(choice.expert, 0);
            ASSERT_LT(choice.expert, 9);
            shows = shows || std::isnan(choice.weight);
          }
          EXPECT_TRUE(shows) << at << ", " << groups << " groups";
        }
      }
    }
  }
}

}  // namespace
}  // namespace orcd::cpu
