#include "runtime/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/sampling/counter_rng.h"
#include "runtime/sampling/exact_exp.h"
#include "testing/sanitized.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kQwenVocab = 151936;

std::vector<uint32_t> MaskFor(const std::vector<float>& logits,
                              const std::vector<int32_t>& forbidden) {
  return AllBut(forbidden, static_cast<int>(logits.size()));
}

int32_t Draw(const std::vector<float>& logits, const SamplingParams& params, uint64_t position = 0,
             const TokenCounts& counts = {}, const std::vector<int32_t>& forbidden = {}) {
  Sampler sampler;
  const SampledToken sample =
      sampler.Sample(logits, params, counts, {MaskFor(logits, forbidden)}, position);
  EXPECT_TRUE(sample.finite);
  return sample.token;
}

std::vector<float> RandomLogits(size_t size, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& l : logits) l = normal(random);
  return logits;
}

// ------------------------------------------------------------------------------------------------
// Greedy

TEST(SamplerTest, GreedyTakesTheLowestIdAmongEquals) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(Draw({1, 5, 5, 2, 5}, greedy), 1);
  EXPECT_EQ(Draw({-0.0f, 0.0f, -0.0f}, greedy), 0);
  EXPECT_EQ(Draw({-kInfinity, -3, -kInfinity, -3}, greedy), 1);
  std::vector<float> logits(kQwenVocab, 0.0f);
  EXPECT_EQ(Draw(logits, greedy), 0);
  logits[kQwenVocab - 1] = 1e-6f;
  EXPECT_EQ(Draw(logits, greedy), kQwenVocab - 1);
}

TEST(SamplerTest, GreedyIgnoresFiltersAndSeed) {
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.top_p = 0.1f;
  greedy.typical_p = 0.1f;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    greedy.seed = seed;
    EXPECT_EQ(Draw({1, 2, 4, 3}, greedy, seed), 2);
  }
}

// ------------------------------------------------------------------------------------------------
// Tokens that cannot be drawn

TEST(SamplerTest, NanOrPositiveInfinityIsNotFinite) {
  for (const float bad : {kNan, kInfinity, -kNan}) {
    for (const size_t size : {1, 3, 64, 100, 1000}) {
      for (const float temperature : {0.0f, 1.0f}) {
        std::vector<float> logits(size, 1.0f);
        logits[size / 2] = bad;
        SamplingParams params;
        params.temperature = temperature;
        params.logprobs = 5;
        EXPECT_FALSE(Sampler().Sample(logits, params, {}, {}, 0).finite) << bad << " " << size;
      }
    }
  }
}

TEST(SamplerTest, NothingLeftIsNotFinite) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.logprobs = 5;
    const std::vector<float> none(100, -kInfinity);
    EXPECT_FALSE(Sampler().Sample(none, params, {}, {}, 0).finite);
    const std::vector<float> some = {1, 2, 3};
    EXPECT_FALSE(Sampler().Sample(some, params, {}, {MaskFor(some, {0, 1, 2})}, 0).finite);
  }
}

TEST(SamplerTest, ForbiddenAndImpossibleTokensAreNeverDrawn) {
  const std::vector<float> logits = {10, 2, -kInfinity, 1, 9};
  SamplingParams params;
  params.temperature = 100;
  params.logit_bias = {{0, 1000.0f}, {2, 1000.0f}};
  std::set<int32_t> drawn;
  for (int position = 0; position < 500; ++position) {
    drawn.insert(Draw(logits, params, position, {}, {0, 4}));
  }
  EXPECT_THAT(drawn, ElementsAre(1, 3));
  params.temperature = 0;
  EXPECT_EQ(Draw(logits, params, 0, {}, {0, 4}), 1);
}

TEST(SamplerTest, SingleCandidate) {
  for (const float temperature : {0.0f, 1e-30f, 1.0f, 100.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_k = 1;
    params.typical_p = 0.5f;
    params.top_p = 0.5f;
    params.min_p = 1;
    EXPECT_EQ(Draw({7.0f}, params), 0);
    EXPECT_EQ(Draw({-kInfinity, -1e30f, -kInfinity}, params), 1);
  }
}

// ------------------------------------------------------------------------------------------------
// The distribution

// Upper 0.01% point of chi-square with `n` degrees of freedom (Wilson and Hilferty).
double ChiSquareLimit(int n) {
  const double z = 3.719;
  const double t = 2.0 / (9.0 * n);
  return n * std::pow(1 - t + z * std::sqrt(t), 3);
}

// Draws at positions 0, 1, … and compares the counts with `probabilities`.
void ExpectDistribution(const std::vector<float>& logits, const SamplingParams& params,
                        const std::vector<double>& probabilities) {
  const int draws = 100000;
  std::vector<int> counts(logits.size());
  Sampler sampler;
  for (int position = 0; position < draws; ++position) {
    ++counts[sampler.Sample(logits, params, {}, {}, position).token];
  }
  double chi_square = 0;
  int cells = 0;
  double rest_expected = 0;
  double rest_counted = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << i;
    }
    if (expected < 10) {
      rest_expected += expected;
      rest_counted += counts[i];
      continue;
    }
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (rest_expected >= 10) {
    chi_square += (rest_counted - rest_expected) * (rest_counted - rest_expected) / rest_expected;
    ++cells;
  }
  ASSERT_GT(cells, 1);
  EXPECT_LT(chi_square, ChiSquareLimit(cells - 1)) << cells;
}

std::vector<double> Softmax(
    const std::vector<float>& logits, double temperature,
    const std::function<bool(int)>& kept = [](int) { return true; }) {
  std::vector<double> p(logits.size());
  double max = -kInfinity;
  for (size_t i = 0; i < p.size(); ++i) {
    if (kept(static_cast<int>(i))) max = std::max<double>(max, logits[i]);
  }
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = kept(static_cast<int>(i)) ? std::exp((logits[i] - max) / temperature) : 0;
    sum += p[i];
  }
  for (double& value : p) value /= sum;
  return p;
}

TEST(SamplerTest, UnfilteredDrawsFollowTheSoftmax) {
  const std::vector<float> logits = RandomLogits(300, 2, 1);
  for (const float temperature : {0.3f, 1.0f, 3.0f}) {
    SamplingParams params;
    params.seed = 5;
    params.temperature = temperature;
    ExpectDistribution(logits, params, Softmax(logits, temperature));
  }
}

TEST(SamplerTest, FilteredDrawsFollowTheRenormalisedSoftmax) {
  const std::vector<float> logits = RandomLogits(300, 2, 2);
  std::vector<float> sorted = logits;
  std::ranges::sort(sorted, std::greater<>());
  SamplingParams params;
  params.seed = 6;
  params.temperature = 0.7f;
  params.top_k = 20;
  ExpectDistribution(logits, params,
                     Softmax(logits, 0.7f, [&](int i) { return logits[i] >= sorted[19]; }));
}

TEST(SamplerTest, EqualLogitsAreDrawnUniformly) {
  const std::vector<float> logits(128, 3.25f);
  SamplingParams params;
  ExpectDistribution(logits, params, std::vector<double>(128, 1.0 / 128));
}

TEST(SamplerTest, ExtremeTemperatures) {
  const std::vector<float> logits = {1, 2, 3, 2.9999f};
  SamplingParams params;
  for (const float tiny : {1e-7f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    params.temperature = tiny;
    for (int position = 0; position < 100; ++position) EXPECT_EQ(Draw(logits, params, position), 2);
  }
  params.temperature = 100;
  ExpectDistribution(logits, params, Softmax(logits, 100));
  // Logits as far apart as F32 allows.
  const std::vector<float> far = {-3.4e38f, 3.4e38f};
  EXPECT_EQ(Draw(far, params), 1);
}

TEST(SamplerTest, SameSeedAndPositionIsTheSameToken) {
  const std::vector<float> logits = RandomLogits(1000, 1, 3);
  SamplingParams params;
  params.seed = 42;
  Sampler used;
  std::vector<int32_t> stream;
  for (uint64_t position = 0; position < 200; ++position) {
    stream.push_back(used.Sample(logits, params, {}, {}, position).token);
  }
  for (uint64_t position = 199; position >= 100; --position) {
    EXPECT_EQ(Draw(logits, params, position), stream[position]);
  }
  params.seed = 43;
  int same = 0;
  for (uint64_t position = 0; position < 200; ++position) {
    same += Draw(logits, params, position) == stream[position];
  }
  EXPECT_LT(same, 20);
}

// ------------------------------------------------------------------------------------------------
// The filters, compared with their definitions in double precision

using Filter = std::function<std::set<int>(const std::vector<float>&, const std::set<int>&)>;

std::vector<int> LikeliestFirst(const std::vector<float>& logits, const std::set<int>& kept) {
  std::vector<int> order(kept.begin(), kept.end());
  std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
  return order;
}

// The first tokens of `order` whose probabilities sum to `p`.
std::set<int> Reaching(const std::vector<int>& order, const std::vector<double>& probabilities,
                       double p) {
  std::set<int> kept;
  double sum = 0;
  for (const int i : order) {
    kept.insert(i);
    sum += probabilities[i];
    if (sum >= p) break;
  }
  return kept;
}

std::set<int> NaiveTopK(const std::vector<float>& logits, const std::set<int>& kept, int k) {
  const std::vector<int> order = LikeliestFirst(logits, kept);
  return {order.begin(), order.begin() + std::min<size_t>(order.size(), k)};
}

std::set<int> NaiveTypical(const std::vector<float>& logits, const std::set<int>& kept, double p,
                           double temperature) {
  const auto probabilities = Softmax(logits, temperature, [&](int i) { return kept.contains(i); });
  double entropy = 0;
  for (const int i : kept) entropy -= probabilities[i] * std::log(probabilities[i]);
  std::vector<int> order(kept.begin(), kept.end());
  std::ranges::stable_sort(order, {},
                           [&](int i) { return std::abs(-std::log(probabilities[i]) - entropy); });
  return Reaching(order, probabilities, p);
}

std::set<int> NaiveTopP(const std::vector<float>& logits, const std::set<int>& kept, double p,
                        double temperature) {
  return Reaching(LikeliestFirst(logits, kept),
                  Softmax(logits, temperature, [&](int i) { return kept.contains(i); }), p);
}

std::set<int> NaiveMinP(const std::vector<float>& logits, const std::set<int>& kept, double p,
                        double temperature) {
  const auto probabilities = Softmax(logits, temperature, [&](int i) { return kept.contains(i); });
  const double max = *std::ranges::max_element(probabilities);
  std::set<int> result;
  for (const int i : kept) {
    if (probabilities[i] >= p * max) result.insert(i);
  }
  return result;
}

std::set<int> NaiveKept(const std::vector<float>& logits, const SamplingParams& params) {
  std::set<int> kept;
  for (size_t i = 0; i < logits.size(); ++i) kept.insert(static_cast<int>(i));
  if (params.top_k > 0) kept = NaiveTopK(logits, kept, params.top_k);
  const double at = params.temperature_first ? params.temperature : 1;
  const bool first = params.temperature_first;
  if (first && params.min_p > 0) kept = NaiveMinP(logits, kept, params.min_p, at);
  if (params.typical_p < 1) kept = NaiveTypical(logits, kept, params.typical_p, at);
  if (params.top_p < 1) kept = NaiveTopP(logits, kept, params.top_p, at);
  if (!first && params.min_p > 0) kept = NaiveMinP(logits, kept, params.min_p, at);
  return kept;
}

// The tokens drawn at so high a temperature that every kept token comes up.
std::set<int> DrawnSet(const std::vector<float>& logits, SamplingParams params) {
  params.temperature = 100;
  std::set<int> drawn;
  Sampler sampler;
  const int draws = static_cast<int>(logits.size()) * 25;
  for (int position = 0; position < draws; ++position) {
    drawn.insert(sampler.Sample(logits, params, {}, {}, position).token);
  }
  return drawn;
}

TEST(SamplerFilterTest, EachKeepsWhatItsNameSays) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const std::vector<float> logits = RandomLogits(90, 2, 100 + seed);
    for (const int k : {1, 2, 20, 65, 89, 90, 91, 1000}) {
      SamplingParams params;
      params.top_k = k;
      EXPECT_EQ(DrawnSet(logits, params), NaiveKept(logits, params)) << "top_k " << k;
    }
    for (const float p : {1e-20f, 0.05f, 0.3f, 0.8f, 0.95f, 0.999f}) {
      SamplingParams top_p;
      top_p.top_p = p;
      EXPECT_EQ(DrawnSet(logits, top_p), NaiveKept(logits, top_p)) << "top_p " << p;
      SamplingParams min_p;
      min_p.min_p = p;
      EXPECT_EQ(DrawnSet(logits, min_p), NaiveKept(logits, min_p)) << "min_p " << p;
      SamplingParams typical;
      typical.typical_p = p;
      EXPECT_EQ(DrawnSet(logits, typical), NaiveKept(logits, typical)) << "typical_p " << p;
    }
  }
}

TEST(SamplerFilterTest, Together) {
  std::mt19937 random(11);
  const auto pick = [&](const auto& values) { return values[random() % std::size(values)]; };
  const int ks[] = {0, 5, 30, 70};
  const float ps[] = {1.0f, 0.3f, 0.7f, 0.95f};
  const float mins[] = {0.0f, 0.02f, 0.3f};
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> logits = RandomLogits(90, 2, 200 + seed);
    SamplingParams params;
    params.top_k = pick(ks);
    params.typical_p = pick(ps);
    params.top_p = pick(ps);
    params.min_p = pick(mins);
    EXPECT_EQ(DrawnSet(logits, params), NaiveKept(logits, params))
        << params.top_k << " " << params.typical_p << " " << params.top_p << " " << params.min_p;
  }
}

// Every drawn token is kept by the filters, and every kept token that is not rare is drawn, by a
// softmax in float64.
TEST(SamplerFilterTest, WithTemperatureFirstTheFiltersSeeItsDistribution) {
  std::mt19937 random(21);
  const auto pick = [&](const auto& values) { return values[random() % std::size(values)]; };
  const int ks[] = {0, 0, 5, 30};
  const float ps[] = {1.0f, 0.3f, 0.7f, 0.95f};
  const float typicals[] = {1.0f, 1.0f, 0.7f};
  const float mins[] = {0.0f, 0.02f, 0.3f};
  const float temperatures[] = {0.2f, 0.7f, 1.5f, 4.0f};
  int told_apart = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> logits = RandomLogits(90, 2, 400 + seed);
    SamplingParams params;
    params.temperature = pick(temperatures);
    params.temperature_first = true;
    params.top_k = pick(ks);
    params.typical_p = pick(typicals);
    params.top_p = pick(ps);
    params.min_p = pick(mins);
    const std::set<int> kept = NaiveKept(logits, params);
    const auto probabilities =
        Softmax(logits, params.temperature, [&](int i) { return kept.contains(i); });
    std::set<int> drawn;
    Sampler sampler;
    constexpr int kDraws = 2000;
    for (int position = 0; position < kDraws; ++position) {
      drawn.insert(sampler.Sample(logits, params, {}, {}, position).token);
    }
    const std::string which = ::testing::PrintToString(
        std::vector<float>{params.temperature, static_cast<float>(params.top_k), params.typical_p,
                           params.top_p, params.min_p});
    EXPECT_TRUE(std::ranges::includes(kept, drawn)) << which;
    for (const int i : kept) {
      if (probabilities[i] * kDraws > 30) {
        EXPECT_TRUE(drawn.contains(i)) << which << " " << i;
      }
    }
    params.temperature_first = false;
    told_apart += kept != NaiveKept(logits, params) ? 1 : 0;
  }
  EXPECT_GT(told_apart, 50);
}

TEST(SamplerFilterTest, TiesAreKeptByLowerId) {
  const std::vector<float> logits(80, 1.0f);
  SamplingParams params;
  params.top_k = 3;
  EXPECT_THAT(DrawnSet(logits, params), ElementsAre(0, 1, 2));
  params.top_k = 0;
  params.top_p = 0.05f;  // A little more than 4/80 in F32.
  EXPECT_THAT(DrawnSet(logits, params), ElementsAre(0, 1, 2, 3, 4));
  params.top_p = 0.03125f;  // 2.5/80.
  EXPECT_THAT(DrawnSet(logits, params), ElementsAre(0, 1, 2));
  params.top_p = 1;
  params.typical_p = 0.03125f;
  EXPECT_THAT(DrawnSet(logits, params), ElementsAre(0, 1, 2));
  params.typical_p = 1;
  params.min_p = 1;
  EXPECT_EQ(DrawnSet(logits, params).size(), 80u);
}

TEST(SamplerFilterTest, TopPReachesExactlyAtAPowerOfTwo) {
  // Probabilities 1/2, 1/4, 1/8, 1/8 would need ln 2 exactly; four equal logits have 1/4 each.
  SamplingParams params;
  params.top_p = 0.5f;
  EXPECT_THAT(DrawnSet({1, 1, 1, 1}, params), ElementsAre(0, 1));
  params.top_p = std::nextafter(0.5f, 1.0f);
  EXPECT_THAT(DrawnSet({1, 1, 1, 1}, params), ElementsAre(0, 1, 2));
}

// ------------------------------------------------------------------------------------------------
// The definition in sampler.h, step by step, without regard for speed: a backend must reproduce it
// token for token.

int32_t SampleByDefinition(std::vector<float> logits, const SamplingParams& params,
                           const TokenCounts& counts, const std::vector<int32_t>& forbidden,
                           uint64_t position) {
  for (const auto& [id, bias] : params.logit_bias) logits[id] += bias;
  if (params.has_penalties()) {
    for (const auto& [id, count] : counts) {
      float& l = logits[id];
      l = l <= 0 ? l * params.repetition_penalty : l / params.repetition_penalty;
      if (count == 0) continue;
      l = std::fma(-static_cast<float>(count), params.frequency_penalty, l);
      l -= params.presence_penalty;
    }
  }
  for (const int32_t id : forbidden) logits[id] = -kInfinity;
  std::vector<int> kept;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInfinity) kept.push_back(static_cast<int>(i));
  }
  const auto likeliest_first = [&](int a, int b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const auto max = [&] { return logits[*std::ranges::min_element(kept, likeliest_first)]; };
  if (params.greedy()) return *std::ranges::min_element(kept, likeliest_first);

  std::map<int, uint64_t> weight;
  std::map<int, uint32_t> octaves;
  uint64_t total = 0;
  const auto weigh = [&](float temperature) {
    total = 0;
    const float greatest = max();
    for (const int i : kept) {
      octaves[i] = Octaves(greatest - logits[i], OctaveScale(temperature));
      weight[i] = Weight(octaves[i]);
      total += weight[i];
    }
  };
  const auto keep_reaching = [&](float p) {
    uint64_t sum = 0;
    size_t n = 0;
    while (sum < ShareOf(total, p)) sum += weight[kept[n++]];
    kept.resize(n);
  };
  if (params.top_k > 0) {
    std::ranges::sort(kept, likeliest_first);
    kept.resize(std::min<size_t>(kept.size(), params.top_k));
  }
  const float filters_at = params.temperature_first ? params.temperature : 1;
  const auto keep_min_p = [&] {
    if (params.min_p <= 0) return;
    const double distance = std::log(static_cast<double>(params.min_p)) * filters_at;
    const float bound = max() + static_cast<float>(distance);
    std::erase_if(kept, [&](int i) { return logits[i] < bound; });
  };
  if (params.temperature_first) keep_min_p();
  if (params.typical_p < 1) {
    weigh(filters_at);
    uint64_t sum = 0;
    unsigned __int128 weighted = 0;
    for (const int i : kept) {
      sum += weight[i] >> 8;
      weighted += (weight[i] >> 8) * octaves[i] >> 25;
    }
    const auto mean = static_cast<int64_t>((weighted << 25) / sum);
    std::ranges::sort(kept, [&](int a, int b) {
      const int64_t far_a = std::abs(static_cast<int64_t>(octaves[a]) - mean);
      const int64_t far_b = std::abs(static_cast<int64_t>(octaves[b]) - mean);
      return far_a != far_b ? far_a < far_b : a < b;
    });
    keep_reaching(params.typical_p);
  }
  if (params.top_p < 1) {
    weigh(filters_at);
    std::ranges::sort(kept, likeliest_first);
    keep_reaching(params.top_p);
  }
  if (!params.temperature_first) keep_min_p();
  weigh(params.temperature);
  std::ranges::sort(kept);
  const uint64_t goal = MultiplyHigh(total, RandomBitsAt(params.seed, position));
  uint64_t sum = 0;
  for (const int i : kept) {
    sum += weight[i];
    if (sum > goal) return i;
  }
  return -1;
}

TEST(SamplerTest, IsItsDefinition) {
  std::mt19937 random(12);
  const auto pick = [&](const auto& values) { return values[random() % std::size(values)]; };
  const size_t vocabs[] = {1, 2, 63, 64, 65, 1000, 5000};
  const float temperatures[] = {0.0f, 0.01f, 0.7f, 1.0f, 5.0f, 100.0f};
  const int ks[] = {0, 0, 1, 20, 64, 700, 10000};
  const float ps[] = {1.0f, 1.0f, 0.01f, 0.5f, 0.8f, 0.95f, 0.9999f};
  const float mins[] = {0.0f, 0.0f, 1e-6f, 0.05f, 1.0f};
  const float repetitions[] = {1.0f, 1.1f, 0.5f, 100.0f};
  const float penalties[] = {0.0f, 0.0f, 0.3f, -100.0f, 100.0f};
  const float spreads[] = {0.0f, 0.1f, 1.0f, 4.0f, 20.0f};
  Sampler sampler;
  constexpr uint32_t kRounds = testing::kSanitized ? 800 : 4000;
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::vector<float> logits = RandomLogits(pick(vocabs), pick(spreads), round);
    // Coarse values produce ties.
    if (random() % 3 == 0) {
      for (float& l : logits) l = std::round(l);
    }
    const auto any_id = [&] { return static_cast<int32_t>(random() % logits.size()); };
    if (logits.size() > 10) {
      for (int i = 0; i < 3; ++i) logits[any_id()] = -kInfinity;
    }
    SamplingParams params;
    params.seed = random();
    params.temperature = pick(temperatures);
    params.top_k = pick(ks);
    params.typical_p = pick(ps);
    params.top_p = pick(ps);
    params.min_p = pick(mins);
    params.temperature_first = random() % 2 == 0;
    params.repetition_penalty = pick(repetitions);
    params.frequency_penalty = pick(penalties);
    params.presence_penalty = pick(penalties);
    TokenCounts counts;
    for (uint32_t i = random() % 20; i > 0; --i) ++counts[any_id()];
    for (uint32_t i = random() % 20; i > 0; --i) counts.try_emplace(any_id(), 0);
    std::map<int32_t, float> bias;
    for (uint32_t i = random() % 4; i > 0; --i) bias[any_id()] = pick(penalties);
    params.logit_bias.assign(bias.begin(), bias.end());
    std::set<int32_t> forbidden_set;
    if (logits.size() > 10) {
      for (uint32_t i = random() % 4; i > 0; --i) forbidden_set.insert(any_id());
    }
    const std::vector<int32_t> forbidden(forbidden_set.begin(), forbidden_set.end());
    const uint64_t position = random();
    const SampledToken sample =
        sampler.Sample(logits, params, counts, {MaskFor(logits, forbidden)}, position);
    ASSERT_TRUE(sample.finite) << round;
    ASSERT_EQ(sample.token, SampleByDefinition(logits, params, counts, forbidden, position))
        << "round " << round << ", vocab " << logits.size() << ", temperature "
        << params.temperature << ", top_k " << params.top_k << ", typical_p " << params.typical_p
        << ", top_p " << params.top_p << ", min_p " << params.min_p;
  }
}

// Results of the definition in unbounded integers and NumPy's F32, computed independently of this
// code. They reveal any change to the definition, which would break resuming a stream elsewhere.
TEST(SamplerTest, DrawsStayWhatTheyAre) {
  std::vector<float> logits(1000);
  for (int i = 0; i < 1000; ++i) logits[i] = static_cast<float>((i * 7919 + 13) % 1009) / 128;
  SamplingParams params;
  params.seed = 2024;
  params.temperature = 0.7f;
  std::vector<int32_t> all;
  for (int position = 0; position < 6; ++position) all.push_back(Draw(logits, params, position));
  params.top_k = 40;
  params.typical_p = 0.95f;
  params.top_p = 0.8f;
  params.min_p = 0.1f;
  std::vector<int32_t> filtered;
  for (int position = 0; position < 6; ++position) {
    filtered.push_back(Draw(logits, params, position));
  }
  EXPECT_THAT(all, ElementsAre(614, 360, 581, 661, 20, 528));
  EXPECT_THAT(filtered, ElementsAre(620, 376, 607, 653, 20, 541));
}

// ------------------------------------------------------------------------------------------------
// Bias and penalties

TEST(SamplerTest, LogitBiasRaisesAndLowers) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{2, 3.5f}};
  EXPECT_EQ(Draw({5, 4, 2, 1}, params), 2);
  params.logit_bias = {{0, -1.5f}};
  EXPECT_EQ(Draw({5, 4, 2, 1}, params), 1);
  params.temperature = 1;
  params.logit_bias = {{3, 1000.0f}};
  for (int position = 0; position < 50; ++position) {
    EXPECT_EQ(Draw({5, 4, 2, 1}, params, position), 3);
  }
}

TEST(SamplerTest, RepetitionPenaltyDividesPositiveAndMultipliesNegative) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2;
  EXPECT_EQ(Draw({5, 4, 1}, params, 0, {{0, 1}}), 1);
  EXPECT_EQ(Draw({5, 2.5f, 1}, params, 0, {{0, 7}}), 0);  // 2.5, and the lower id.
  EXPECT_EQ(Draw({-1, -1.5f}, params, 0, {{0, 1}}), 1);
  EXPECT_EQ(Draw({-1, -2}, params, 0, {{0, 1}}), 0);
  params.repetition_penalty = 0.25f;
  EXPECT_EQ(Draw({5, 2, -1}, params, 0, {{1, 1}}), 1);
}

TEST(SamplerTest, FrequencyCountsAndPresenceDoesNot) {
  SamplingParams params;
  params.temperature = 0;
  params.frequency_penalty = 0.5f;
  EXPECT_EQ(Draw({5, 4.1f}, params, 0, {{0, 1}}), 0);
  EXPECT_EQ(Draw({5, 4.1f}, params, 0, {{0, 2}}), 1);
  params.frequency_penalty = 0;
  params.presence_penalty = 0.8f;
  EXPECT_EQ(Draw({5, 4.1f}, params, 0, {{0, 100}}), 0);
  params.presence_penalty = 1;
  EXPECT_EQ(Draw({5, 4.1f}, params, 0, {{0, 1}}), 1);
  params.presence_penalty = -1;
  EXPECT_EQ(Draw({5, 4.1f}, params, 0, {{1, 1}}), 1);
}

TEST(SamplerTest, PresenceAndFrequencyLeaveAloneWhatOnlyThePromptHas) {
  SamplingParams params;
  params.temperature = 0;
  params.presence_penalty = 10;
  params.frequency_penalty = 10;
  EXPECT_EQ(Draw({5, 4, 1}, params, 0, {{0, 0}}), 0);
  EXPECT_EQ(Draw({5, 4, 1}, params, 0, {{0, 1}}), 1);
  params.repetition_penalty = 2;
  EXPECT_EQ(Draw({5, 4, 1}, params, 0, {{0, 0}}), 1);
}

// The definition of the parameters of OpenAI and vLLM, in float64, from the tokens themselves: l /
// r or l * r for tokens of prompt and output, then -frequency * (times generated) and -presence (if
// generated).
TEST(SamplerTest, PenaltiesAreThoseOfTheSequence) {
  std::mt19937 random(31);
  constexpr int kVocab = 40;
  const float repetitions[] = {1.0f, 1.3f, 0.5f};
  int told_apart = 0;
  for (int round = 0; round < 2000; ++round) {
    // Coarse values, so that no two adjusted logits are within a rounding error of each other
    // unless they are equal by design.
    std::vector<float> logits(kVocab);
    for (float& l : logits) l = static_cast<float>(static_cast<int>(random() % 160)) / 16 - 5;
    std::vector<int32_t> prompt(random() % 30);
    std::vector<int32_t> output(random() % 30);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % kVocab);
    for (int32_t& token : output) token = static_cast<int32_t>(random() % kVocab);
    SamplingParams params;
    params.temperature = 0;
    params.repetition_penalty = repetitions[random() % 3];
    params.frequency_penalty = static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;
    params.presence_penalty = static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;
    std::vector<int32_t> sequence = prompt;
    sequence.insert(sequence.end(), output.begin(), output.end());
    int32_t of_scope[2];
    for (const bool count_prompt : {false, true}) {
      params.count_prompt = count_prompt;
      const std::vector<int32_t>& counted = count_prompt ? sequence : output;
      std::vector<double> adjusted(logits.begin(), logits.end());
      for (int32_t id = 0; id < kVocab; ++id) {
        double& l = adjusted[id];
        if (std::ranges::count(sequence, id) > 0) {
          l = l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty;
        }
        const auto times = static_cast<double>(std::ranges::count(counted, id));
        l -= params.frequency_penalty * times + (times > 0 ? params.presence_penalty : 0);
      }
      const auto expected =
          static_cast<int32_t>(std::ranges::max_element(adjusted) - adjusted.begin());
      TokenCounts counts;
      CountTokens(sequence, static_cast<int32_t>(prompt.size()), params, counts);
      const int32_t drawn = Draw(logits, params, sequence.size(), counts);
      of_scope[count_prompt] = drawn;
      // The two adjusted logits may differ by a rounding error.
      ASSERT_NEAR(adjusted[drawn], adjusted[expected], 1e-5) << "round " << round;
    }
    told_apart += of_scope[0] != of_scope[1] ? 1 : 0;
  }
  EXPECT_GT(told_apart, 200);
}

TEST(SamplerTest, CountsBeyondTheMostAreTheMost) {
  SamplingParams params;
  params.temperature = 0;
  params.frequency_penalty = 1.0f / 65536;
  // 65534 / 65536 is subtracted, however high the count.
  for (const int32_t count : {65534, 65535, 70000}) {
    EXPECT_EQ(Draw({2, 1.00002f}, params, 0, {{0, count}}), 0) << count;
    EXPECT_EQ(Draw({2, 1.00004f}, params, 0, {{0, count}}), 1) << count;
  }
}

TEST(SamplerTest, PenaltiesThatOverflowStayFinite) {
  SamplingParams params;
  params.repetition_penalty = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Draw({1, 2, 3}, params, 0, {{0, 1}}), 0);
  params.repetition_penalty = 100;
  params.temperature = 0;
  EXPECT_EQ(Draw({-3e38f, -3.1e38f}, params, 0, {{0, 1}, {1, 1}}), 0);
}

// ------------------------------------------------------------------------------------------------
// Log-probabilities

TEST(SamplerTest, LogprobsAreOfTheModelsOwnDistribution) {
  const std::vector<float> logits = {1, 3, -kInfinity, 3, 2, 0};
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{5, 100.0f}};
  params.repetition_penalty = 2;
  params.logprobs = 3;
  const SampledToken sample = Sampler().Sample(logits, params, {{3, 4}}, {MaskFor(logits, {1})}, 9);
  EXPECT_EQ(sample.token, 5);
  double sum = 0;
  for (const float l : logits) sum += std::exp(l);
  EXPECT_NEAR(sample.logprob, 0 - std::log(sum), 1e-6);
  ASSERT_EQ(sample.top.size(), 3u);
  EXPECT_EQ(sample.top[0].token, 1);
  EXPECT_EQ(sample.top[1].token, 3);
  EXPECT_EQ(sample.top[2].token, 4);
  EXPECT_NEAR(sample.top[0].logprob, 3 - std::log(sum), 1e-6);
  EXPECT_EQ(sample.top[0].logprob, sample.top[1].logprob);
  EXPECT_NEAR(sample.top[2].logprob, 2 - std::log(sum), 1e-6);

  params.logprobs = 0;
  const SampledToken alone = Sampler().Sample(logits, params, {}, {}, 9);
  EXPECT_NEAR(alone.logprob, 0 - std::log(sum), 1e-6);
  EXPECT_TRUE(alone.top.empty());

  params.logprobs = 20;  // More than there are.
  EXPECT_EQ(Sampler().Sample(logits, params, {}, {}, 9).top.size(), 5u);
  params.logprobs = -1;
  EXPECT_TRUE(Sampler().Sample(logits, params, {}, {}, 9).top.empty());
}

TEST(SamplerTest, MaskedLogprobsAreOfTheAllowedTokensAlone) {
  const std::vector<float> logits = RandomLogits(300, 2, 5);
  std::vector<int32_t> forbidden;
  for (int32_t token = 0; token < 300; ++token) {
    if (token % 50 != 7) forbidden.push_back(token);
  }
  const std::vector<uint32_t> words = MaskFor(logits, forbidden);
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_k = 4;
  params.presence_penalty = 1.5f;
  params.logit_bias = {{57, 3.0f}};
  params.logprobs = 20;
  const TokenCounts counts = {{107, 2}};
  params.masked_logprobs = true;
  Sampler sampler;
  const SampledToken masked = sampler.Sample(logits, params, counts, {words}, 9);
  double sum = 0;
  for (int32_t token = 7; token < 300; token += 50) sum += std::exp(double{logits[token]});
  const auto logprob = [&](int32_t token) { return logits[token] - std::log(sum); };
  ASSERT_EQ(masked.top.size(), 6u) << "the others have no probability";
  for (size_t i = 0; i < masked.top.size(); ++i) {
    EXPECT_EQ(masked.top[i].token % 50, 7);
    EXPECT_NEAR(masked.top[i].logprob, logprob(masked.top[i].token), 1e-5);
    if (i > 0) {
      EXPECT_LE(masked.top[i].logprob, masked.top[i - 1].logprob);
    }
  }
  EXPECT_NEAR(masked.logprob, logprob(masked.token), 1e-5);

  // The draw is the same.
  params.masked_logprobs = false;
  const SampledToken plain = sampler.Sample(logits, params, counts, {words}, 9);
  EXPECT_EQ(plain.token, masked.token);
  EXPECT_LT(plain.logprob, masked.logprob);
  // Without a mask every token is allowed.
  params.masked_logprobs = true;
  const SampledToken all = sampler.Sample(logits, params, counts, {}, 9);
  params.masked_logprobs = false;
  EXPECT_EQ(all.logprob, sampler.Sample(logits, params, counts, {}, 9).logprob);
  // A token alone is certain.
  params.masked_logprobs = true;
  forbidden.clear();
  for (int32_t token = 1; token < 300; ++token) forbidden.push_back(token);
  const std::vector<uint32_t> first = MaskFor(logits, forbidden);
  const SampledToken certain = sampler.Sample(logits, params, counts, {first}, 9);
  EXPECT_EQ(certain.token, 0);
  EXPECT_EQ(certain.logprob, 0);
  ASSERT_EQ(certain.top.size(), 1u);
}

TEST(SamplerTest, ScoresATokenAsIfItHadBeenDrawn) {
  const std::vector<float> logits = RandomLogits(3000, 2, 4);
  SamplingParams params;
  params.logprobs = 5;
  for (int position = 0; position < 20; ++position) {
    const SampledToken drawn = Sampler().Sample(logits, params, {}, {}, position);
    const SampledToken scored = Sampler().Score(logits, drawn.token, 5);
    EXPECT_EQ(scored.token, drawn.token);
    EXPECT_EQ(scored.logprob, drawn.logprob);
    ASSERT_EQ(scored.top.size(), 5u);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(scored.top[i].token, drawn.top[i].token);
      EXPECT_EQ(scored.top[i].logprob, drawn.top[i].logprob);
    }
  }
  EXPECT_FALSE(Sampler().Score({{1, std::nanf(""), 2}}, 0, 0).finite);
  EXPECT_EQ(Sampler().Score({{1, -kInfinity, 2}}, 1, 0).logprob, -kInfinity);
}

TEST(SamplerTest, LogprobsDoNotChangeTheDraw) {
  const std::vector<float> logits = RandomLogits(3000, 2, 4);
  SamplingParams without;
  without.top_p = 0.9f;
  SamplingParams with = without;
  with.logprobs = 20;
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(Draw(logits, with, position), Draw(logits, without, position));
  }
}

// ------------------------------------------------------------------------------------------------
// Speed, at the real vocabulary. The bounds are loose, for slow and busy machines; the measured
// values are recorded as properties of the test.

TEST(SamplerTest, IsQuickAtTheRealVocabulary) {
  const std::vector<float> logits = RandomLogits(kQwenVocab, 3, 5);
  const std::vector<float> flat(kQwenVocab, 0.5f);
  SamplingParams all;
  all.temperature = 0.7f;
  SamplingParams card = all;
  card.top_k = 20;
  card.top_p = 0.8f;
  SamplingParams card_penalty = card;
  card_penalty.repetition_penalty = 1.05f;
  SamplingParams top_p = all;
  top_p.top_p = 0.95f;
  SamplingParams typical = all;
  typical.typical_p = 0.9f;
  SamplingParams greedy;
  greedy.temperature = 0;
  SamplingParams logprobs = card;
  logprobs.logprobs = 20;
  TokenCounts counts;
  for (int32_t i = 0; i < 2000; ++i) counts[i * 7] = 1 + i % 5;
  const struct {
    const char* name;
    const SamplingParams& params;
    const std::vector<float>& logits;
    double limit_ms;
  } cases[] = {
      {"greedy", greedy, logits, 10},
      {"top_k_20_top_p", card, logits, 10},
      {"top_k_20_top_p_repetition", card_penalty, logits, 10},
      {"temperature", all, logits, 30},
      {"top_p", top_p, logits, 30},
      {"typical", typical, logits, 60},
      {"top_p_flat", top_p, flat, 100},
      {"logprobs", logprobs, logits, 30},
  };
  Sampler sampler;
  for (const auto& c : cases) {
    const int rounds = 20;
    double best_ms = std::numeric_limits<double>::infinity();
    for (int i = 0; i < rounds; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const SampledToken sample = sampler.Sample(c.logits, c.params, counts, {}, i);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      EXPECT_TRUE(sample.finite);
      best_ms = std::min(best_ms, took.count());
    }
    RecordProperty(c.name, std::to_string(best_ms) + " ms");
    EXPECT_LT(best_ms, c.limit_ms) << c.name;
  }
}

}  // namespace
}  // namespace orcd
