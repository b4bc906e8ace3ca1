#include "runtime/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/sampling/counter_rng.h"
#include "runtime/sampling/exact_exp.h"

namespace orcd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Ascending keys order tokens by logit descending, then id ascending.
uint64_t LikeliestFirst(float logit, int32_t token) {
  // Adding zero gives -0 and +0, which compare equal, the same bits.
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t descending = bits >> 31 ? bits : ~bits & 0x7fffffff;
  return uint64_t{descending} << 32 | static_cast<uint32_t>(token);
}

float Penalize(float logit, int32_t count, const SamplingParams& params) {
  if (logit == -kInfinity) return logit;
  logit = logit <= 0 ? logit * params.repetition_penalty : logit / params.repetition_penalty;
  if (count > 0) {
    count = std::min(count, kMaxTokenCount);
    logit = std::fma(-static_cast<float>(count), params.frequency_penalty, logit);
    logit -= params.presence_penalty;
  }
  constexpr float kMax = std::numeric_limits<float>::max();
  return std::clamp(logit, -kMax, kMax);
}

}  // namespace

void CountTokens(std::span<const int32_t> sequence, int32_t prompt_tokens,
                 const SamplingParams& params, TokenCounts& counts) {
  for (size_t i = 0; i < sequence.size(); ++i) {
    int32_t& count = counts[sequence[i]];
    if (params.count_prompt || i >= static_cast<size_t>(prompt_tokens)) ++count;
  }
}

SampledToken Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                             const TokenCounts& counts, const TokenMask& mask, uint64_t position) {
  SampledToken sample;
  if (!scan_.Scan(logits)) {
    sample.finite = false;
    return sample;
  }
  if (params.logprobs >= 0 && params.masked_logprobs) Mask(logits, mask);
  const bool wants_logprobs = params.logprobs >= 0 && scan_.max() > -kInfinity;
  const double log_sum = wants_logprobs ? Logprobs(params.logprobs, sample.top) : 0;

  Adjust(logits, params, counts, mask);
  if (scan_.max() == -kInfinity) {
    sample.finite = false;
    return sample;
  }

  if (params.greedy()) {
    sample.token = scan_.ArgMax();
  } else {
    filtered_ = false;
    candidates_.clear();
    const float scale = OctaveScale(params.filter_temperature());
    const bool has_min_p = params.min_p > 0;
    if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) TopK(params.top_k);
    if (has_min_p && params.temperature_first) MinP(params.min_p_distance());
    if (params.typical_p < 1) Typical(params.typical_p, scale);
    if (params.top_p < 1) TopP(params.top_p, scale);
    if (has_min_p && !params.temperature_first) MinP(params.min_p_distance());
    const uint64_t random = RandomBitsAt(params.seed, position);
    sample.token = filtered_ ? DrawFromCandidates(params.temperature, random)
                             : DrawFromAll(params.temperature, random);
  }
  if (wants_logprobs) sample.logprob = static_cast<float>(logits[sample.token] - log_sum);
  return sample;
}

SampledToken Sampler::Score(std::span<const float> logits, int32_t token, int32_t top) {
  SampledToken scored;
  scored.token = token;
  scored.finite = scan_.Scan(logits) && scan_.max() > -kInfinity;
  if (scored.finite) {
    scored.logprob = static_cast<float>(logits[token] - Logprobs(top, scored.top));
  }
  return scored;
}

double Sampler::Logprobs(int count, std::vector<TokenLogprob>& top) {
  const double max = scan_.max();
  double sum = 0;
  for (const float logit : scan_.logits()) sum += std::exp(logit - max);
  const double log_sum = max + std::log(sum);
  if (count > 0) {
    TopK(count);
    std::ranges::sort(candidates_, {}, &Candidate::key);
    for (const Candidate& c : candidates_) {
      top.push_back({c.token(), static_cast<float>(LogitOf(c) - log_sum)});
    }
  }
  return log_sum;
}

void Sampler::Mask(std::span<const float> logits, const TokenMask& mask) {
  if (mask.empty()) return;
  adjusted_.assign(logits.begin(), logits.end());
  mask.ForEachForbidden([&](int32_t token) { adjusted_[token] = -kInfinity; });
  // A scan of some of the logits cannot fail if that of all of them did not.
  static_cast<void>(scan_.Scan(adjusted_));
}

void Sampler::Adjust(std::span<const float> logits, const SamplingParams& params,
                     const TokenCounts& counts, const TokenMask& mask) {
  const bool penalties = params.has_penalties() && !counts.empty();
  if (params.logit_bias.empty() && !penalties && mask.empty()) return;
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) adjusted_[token] += bias;
  if (penalties) {
    for (const auto& [token, count] : counts) {
      adjusted_[token] = Penalize(adjusted_[token], count, params);
    }
  }
  mask.ForEachForbidden([&](int32_t token) { adjusted_[token] = -kInfinity; });
  // Finite logits stay finite, so this scan cannot fail if the first one succeeded.
  static_cast<void>(scan_.Scan(adjusted_));
}

void Sampler::TopK(size_t k) {
  candidates_.clear();
  scan_.ForEachAtLeast(scan_.BoundOfTop(k), [&](float logit, int32_t token) {
    candidates_.push_back({LikeliestFirst(logit, token), 0});
  });
  if (candidates_.size() > k) {
    std::ranges::nth_element(candidates_, candidates_.begin() + static_cast<ptrdiff_t>(k), {},
                             &Candidate::key);
    candidates_.resize(k);
  }
  filtered_ = true;
}

void Sampler::Typical(float typical_p, float scale) {
  if (!filtered_) {
    scan_.ForEachAtLeast(-kInfinity, [&](float logit, int32_t token) {
      candidates_.push_back({LikeliestFirst(logit, token), 0});
    });
    filtered_ = true;
  }
  const float max = MaxOfCandidates();
  // The surprise of a token is its octaves plus a constant, so its distance from the entropy is the
  // distance of its octaves from their mean. The shifts keep the sums within 64 bits.
  uint64_t total = 0;
  uint64_t weights = 0;
  uint64_t weighted_octaves = 0;
  for (Candidate& c : candidates_) {
    const uint32_t octaves = Octaves(max - LogitOf(c), scale);
    c.weight = Weight(octaves);
    total += c.weight;
    weights += c.weight >> 8;
    weighted_octaves += (c.weight >> 8) * octaves >> kOctaveBits;
  }
  const auto mean = static_cast<uint32_t>(
      (static_cast<unsigned __int128>(weighted_octaves) << kOctaveBits) / weights);
  for (Candidate& c : candidates_) {
    const uint32_t octaves = Octaves(max - LogitOf(c), scale);
    const uint32_t surprise = octaves > mean ? octaves - mean : mean - octaves;
    c.key = uint64_t{surprise} << 32 | static_cast<uint32_t>(c.token());
  }
  candidates_.resize(PartitionPrefix(ShareOf(total, typical_p)));
}

void Sampler::TopP(float top_p, float scale) {
  if (filtered_) {
    const float max = MaxOfCandidates();
    uint64_t total = 0;
    for (Candidate& c : candidates_) {
      const float logit = LogitOf(c);
      c = {LikeliestFirst(logit, c.token()), Weight(Octaves(max - logit, scale))};
      total += c.weight;
    }
    candidates_.resize(PartitionPrefix(ShareOf(total, top_p)));
    return;
  }

  // No filter has run: find the octave in which the cumulative weight reaches the goal, and order
  // only the tokens within that octave or above.
  const float max = scan_.max();
  std::array<uint64_t, (kOctavesFar >> kOctaveBits) + 1> sums = {};
  for (size_t c = 0; c < scan_.chunk_count(); ++c) {
    if (Weight(Octaves(max - scan_.chunk_max(c), scale)) == 0) continue;
    for (const float logit : scan_.Chunk(c)) {
      const uint32_t octaves = Octaves(max - logit, scale);
      sums[octaves >> kOctaveBits] += Weight(octaves);
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  const uint64_t goal = ShareOf(total, top_p);
  uint32_t last = 0;
  for (uint64_t reached = sums[0]; reached < goal; reached += sums[last]) ++last;
  for (size_t c = 0; c < scan_.chunk_count(); ++c) {
    if (Octaves(max - scan_.chunk_max(c), scale) >> kOctaveBits > last) continue;
    const std::span<const float> chunk = scan_.Chunk(c);
    for (size_t i = 0; i < chunk.size(); ++i) {
      const uint32_t octaves = Octaves(max - chunk[i], scale);
      if (octaves >> kOctaveBits > last) continue;
      const auto token = static_cast<int32_t>(c * LogitScan::kChunk + i);
      candidates_.push_back({LikeliestFirst(chunk[i], token), Weight(octaves)});
    }
  }
  filtered_ = true;
  candidates_.resize(PartitionPrefix(goal));
}

void Sampler::MinP(float distance) {
  if (filtered_) {
    const float bound = MaxOfCandidates() + distance;
    std::erase_if(candidates_, [&](const Candidate& c) { return LogitOf(c) < bound; });
    return;
  }
  scan_.ForEachAtLeast(scan_.max() + distance, [&](float logit, int32_t token) {
    candidates_.push_back({LikeliestFirst(logit, token), 0});
  });
  filtered_ = true;
}

int32_t Sampler::DrawFromAll(float temperature, uint64_t random) {
  const float scale = OctaveScale(temperature);
  const float max = scan_.max();
  chunk_weights_.assign(scan_.chunk_count(), 0);
  uint64_t total = 0;
  for (size_t c = 0; c < scan_.chunk_count(); ++c) {
    if (Weight(Octaves(max - scan_.chunk_max(c), scale)) == 0) continue;
    uint64_t sum = 0;
    for (const float logit : scan_.Chunk(c)) sum += Weight(Octaves(max - logit, scale));
    chunk_weights_[c] = sum;
    total += sum;
  }
  uint64_t goal = MultiplyHigh(total, random);
  size_t c = 0;
  for (; goal >= chunk_weights_[c]; ++c) goal -= chunk_weights_[c];
  const std::span<const float> chunk = scan_.Chunk(c);
  size_t i = 0;
  for (;; ++i) {
    const uint64_t weight = Weight(Octaves(max - chunk[i], scale));
    if (goal < weight) break;
    goal -= weight;
  }
  return static_cast<int32_t>(c * LogitScan::kChunk + i);
}

int32_t Sampler::DrawFromCandidates(float temperature, uint64_t random) {
  const float scale = OctaveScale(temperature);
  const float max = MaxOfCandidates();
  uint64_t total = 0;
  for (Candidate& c : candidates_) {
    c = {static_cast<uint32_t>(c.token()), Weight(Octaves(max - LogitOf(c), scale))};
    total += c.weight;
  }
  return candidates_[PartitionPrefix(MultiplyHigh(total, random) + 1) - 1].token();
}

float Sampler::LogitOf(const Candidate& candidate) const {
  return scan_.logits()[candidate.token()];
}

float Sampler::MaxOfCandidates() const {
  float max = -kInfinity;
  for (const Candidate& c : candidates_) max = std::max(max, LogitOf(c));
  return max;
}

size_t Sampler::PartitionPrefix(uint64_t goal) {
  // Quickselect that measures a prefix by its weight instead of its length.
  constexpr size_t kFewEnoughToSort = 64;
  const auto at = [&](size_t i) { return candidates_.begin() + static_cast<ptrdiff_t>(i); };
  size_t begin = 0;
  size_t end = candidates_.size();
  while (end - begin > kFewEnoughToSort) {
    const size_t middle = begin + (end - begin) / 2;
    std::ranges::nth_element(at(begin), at(middle), at(end), {}, &Candidate::key);
    uint64_t lower = 0;
    for (size_t i = begin; i < middle; ++i) lower += candidates_[i].weight;
    if (lower >= goal) {
      end = middle;
    } else {
      goal -= lower;
      begin = middle;
    }
  }
  std::ranges::sort(at(begin), at(end), {}, &Candidate::key);
  while (candidates_[begin].weight < goal) goal -= candidates_[begin++].weight;
  return begin + 1;
}

}  // namespace orcd
