// The GPU's sampler draws what runtime/sampling's draws from the same logits, token for token.
#include "cuda/kernels/common/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/step_tables.h"
#include "runtime/sampling/params.h"
#include "runtime/sampling/sampler.h"
#include "runtime/sampling/token_mask.h"

namespace orcd::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kBlockTokens = 16;
// Index of the first result in the array; nonzero, as for a second step in flight.
constexpr int kFirstResult = 3;
constexpr uint32_t kStepNumber = 77;

// Inputs of one draw.
struct Draw {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> history;
  // TokenMask::words; empty: every token may be drawn.
  std::vector<uint32_t> mask = {};
  // True if the mask comes after the other tables.
  bool mask_follows = false;
  // Length of the prompt, at the start of `history`.
  int32_t prompt_tokens = 0;
  // True if a key or value of the sequence was not finite.
  bool flagged = false;
};

std::string Describe(const Draw& draw) {
  const SamplingParams& p = draw.params;
  const size_t vocab = draw.logits.size();
  size_t allowed = vocab;
  if (!draw.mask.empty()) {
    TokenMask{draw.mask}.ForEachForbidden([&](int32_t) { --allowed; });
  }
  return ::testing::PrintToString(std::vector<float>{
             p.temperature, static_cast<float>(p.top_k), p.top_p, p.min_p, p.typical_p,
             p.repetition_penalty, p.frequency_penalty, p.presence_penalty}) +
         " (temperature, top_k, top_p, min_p, typical_p, repetition, frequency, presence), " +
         std::to_string(p.logit_bias.size()) + " biases, " + std::to_string(allowed) +
         " allowed of " + std::to_string(vocab) +
         (p.masked_logprobs ? ", masked log-probabilities" : "") + ", seed " +
         std::to_string(p.seed) + ", history of " + std::to_string(draw.history.size());
}

class SampleTest : public GpuTest {
 protected:
  // Runs all draws on the GPU, with one entry that pads a bucket, and compares them with the
  // reference.
  void ExpectAsReference(const std::vector<Draw>& draws) {
    const int rows = static_cast<int>(draws.size());
    const int vocab = static_cast<int>(draws[0].logits.size());
    ASSERT_EQ(kernels().prepare(traits(), vocab), cudaSuccess);

    // The histories are in shuffled blocks.
    int all_blocks = 0;
    const auto blocks_of = [](const Draw& draw) {
      return static_cast<int>(draw.history.size() + kBlockTokens - 1) / kBlockTokens;
    };
    for (const Draw& draw : draws) all_blocks += blocks_of(draw);
    std::vector<int32_t> order(all_blocks);
    for (int i = 0; i < all_blocks; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(9));
    // Token ids that no sequence wrote must not be counted.
    std::vector<int32_t> block_token_ids(all_blocks * kBlockTokens, 0);
    std::vector<std::vector<int32_t>> blocks;
    std::vector<TokenMask> late_masks;
    std::vector<SlotState> slots(rows);
    StepBatch batch;
    std::vector<int32_t> flags(rows);
    int next = 0;
    for (int i = 0; i < rows; ++i) {
      const Draw& draw = draws[i];
      blocks.emplace_back(order.begin() + next, order.begin() + next + blocks_of(draw));
      next += blocks_of(draw);
      for (size_t p = 0; p < draw.history.size(); ++p) {
        block_token_ids[blocks[i][p / kBlockTokens] * kBlockTokens + p % kBlockTokens] =
            draw.history[p];
      }
      // Slots are in another order than rows.
      const int slot = rows - 1 - i;
      slots[slot] = {.params = draw.params, .prompt_tokens = draw.prompt_tokens};
      flags[slot] = draw.flagged ? 1 : 0;
    }
    for (int i = 0; i < rows; ++i) {
      StepSequence seq;
      seq.slot = rows - 1 - i;
      seq.tokens = std::span(draws[i].history).last(1);
      seq.start_position = static_cast<int32_t>(draws[i].history.size()) - 1;
      seq.blocks = blocks[i];
      seq.mask_follows = draws[i].mask_follows && !draws[i].mask.empty();
      if (seq.mask_follows) {
        late_masks.push_back({draws[i].mask});
      } else {
        seq.mask = {draws[i].mask};
      }
      seq.sample = true;
      batch.seqs.push_back(seq);
    }
    LayerSpec layer;
    layer.heads = 1;
    layer.kv_heads = 1;
    const StepShape shape = {.tokens = rows + 1, .sequences = rows + 1, .logit_rows = rows + 1};
    StepLimits limits = {.max_tokens = rows + 1,
                         .max_seqs = rows + 1,
                         .max_blocks = all_blocks,
                         .mask_words = static_cast<int64_t>(TokenMask::WordsFor(vocab))};
    for (const Draw& draw : draws) {
      limits.max_biases += static_cast<int64_t>(draw.params.logit_bias.size());
    }
    const size_t table_bytes = TableLayout(shape, limits, nullptr).bytes;
    std::vector<uint8_t> host_tables(table_bytes);
    const TableLayout host(shape, limits, host_tables.data());
    const TablesInUse used =
        WriteTables(batch, layer, kBlockTokens, slots, shape,
                    {.number = kStepNumber, .first_result = kFirstResult}, host);
    ASSERT_EQ(used.masks_to_follow, static_cast<int>(late_masks.size()));
    WriteMasks(late_masks, used.masks, host);
    const DeviceArray<uint8_t> tables(table_bytes);
    const TableLayout device(shape, limits, tables.data());
    ASSERT_EQ(cudaMemcpy(tables.data(), host.tokens, used.bytes, cudaMemcpyHostToDevice),
              cudaSuccess);
    // Rows of no draw keep the bits of poison, which would allow every token.
    const size_t mask_bytes =
        sizeof(uint32_t) * (used.masks + used.masks_to_follow) * host.mask_words;
    ASSERT_EQ(cudaMemcpy(device.masks, host.masks, mask_bytes, cudaMemcpyHostToDevice),
              cudaSuccess);

    const DeviceArray<float> logits(size_t{1} * (rows + 1) * vocab);
    for (int i = 0; i < rows; ++i) {
      ASSERT_EQ(cudaMemcpyAsync(logits.data() + size_t{1} * i * vocab, draws[i].logits.data(),
                                vocab * sizeof(float), cudaMemcpyHostToDevice, stream()),
                cudaSuccess);
    }
    ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
    const DeviceArray<int32_t> device_ids(block_token_ids);
    const DeviceArray<int32_t> not_finite(flags);
    const DeviceArray<int32_t> last_sample(static_cast<size_t>(rows));
    const DeviceArray<DrawResult> results(kFirstResult + rows + 2);
    ASSERT_EQ(kernels().sample({.step = device.tables(),
                                .draws = device.draws,
                                .biases = device.biases,
                                .masks = device.masks,
                                .block_token_ids = device_ids.data(),
                                .block_tokens = kBlockTokens,
                                .not_finite = not_finite.data(),
                                .logits = logits.data(),
                                .vocab = vocab,
                                .rows = rows + 1,
                                .results = results.data(),
                                .last_sample = last_sample.data()},
                               traits(), stream()),
              cudaSuccess);
    const std::vector<DrawResult> actual = results.Read();
    const std::vector<int32_t> remembered = last_sample.Read();
    // Neither the padding entry nor anything else writes beside the results.
    for (int i = 0; i < kFirstResult + rows + 2; ++i) {
      if (i >= kFirstResult && i < kFirstResult + rows) continue;
      EXPECT_EQ(actual[i].step, 0xFFFFFFFF) << i;
    }

    std::vector<SampledToken> expected(rows);
    InParallel(rows, [&](int64_t i) {
      const Draw& draw = draws[i];
      TokenCounts counts;
      if (draw.params.has_penalties()) {
        CountTokens(draw.history, draw.prompt_tokens, draw.params, counts);
      }
      Sampler sampler;
      expected[i] =
          sampler.Sample(draw.logits, draw.params, counts, {draw.mask}, draw.history.size());
      expected[i].finite = expected[i].finite && !draw.flagged;
    });
    for (int i = 0; i < rows; ++i) {
      SCOPED_TRACE(Describe(draws[i]));
      const DrawResult& result = actual[kFirstResult + i];
      ASSERT_EQ(result.step, kStepNumber);
      ASSERT_EQ(result.finite != 0, expected[i].finite);
      if (!expected[i].finite) continue;
      ASSERT_EQ(result.token, expected[i].token);
      ASSERT_EQ(remembered[rows - 1 - i], expected[i].token);
      if (draws[i].params.logprobs < 0) continue;
      float largest = 0;
      for (const float logit : draws[i].logits) {
        if (std::isfinite(logit)) largest = std::max(largest, std::abs(logit));
      }
      // The GPU sums exponentials in double precision in another order, and rounds the result to
      // F32.
      const auto near = [&](float a, float b) {
        return a == b || std::abs(double{a} - double{b}) <=
                             0x1p-23 * std::abs(double{b}) + 0x1p-40 * (1 + double{largest});
      };
      ASSERT_TRUE(near(result.logprob, expected[i].logprob))
          << result.logprob << " and " << expected[i].logprob;
      ASSERT_EQ(result.top_count, static_cast<int>(expected[i].top.size()));
      for (int k = 0; k < result.top_count; ++k) {
        ASSERT_EQ(result.top_tokens[k], expected[i].top[k].token) << "place " << k;
        ASSERT_TRUE(near(result.top_logprobs[k], expected[i].top[k].logprob))
            << "place " << k << ": " << result.top_logprobs[k] << " and "
            << expected[i].top[k].logprob;
      }
    }
  }
};

template <typename T, size_t kSize>
T Pick(std::mt19937& rng, const T (&values)[kSize]) {
  return values[rng() % kSize];
}

// Bell-shaped random numbers, without the library's loops: large vocabularies need many logits.
float Bell(std::mt19937& rng) {
  const uint32_t bits = rng();
  const int sum =
      static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)) - 510;
  return static_cast<float>(sum) / 147.8f + static_cast<float>(rng() & 0xffff) * 1e-7f;
}

std::vector<float> RandomLogits(int vocab, std::mt19937& rng) {
  std::vector<float> logits(vocab);
  const int kind = static_cast<int>(rng() % 10);
  const float spreads[] = {0.1f, 1.0f, 2.0f, 8.0f, 40.0f};
  const float spread = Pick(rng, spreads);
  for (float& logit : logits) logit = spread * Bell(rng);
  switch (kind) {
    case 0:  // Many ties.
      for (float& logit : logits) logit = std::round(logit * 4) / 4;
      break;
    case 1:  // Nothing but ties.
      std::fill(logits.begin(), logits.end(), -1.5f);
      break;
    case 2:  // Half cannot be drawn.
      for (float& logit : logits) {
        if (rng() % 2 == 0) logit = -kInfinity;
      }
      break;
    case 3: {  // One or two can.
      const std::vector<float> some = logits;
      std::fill(logits.begin(), logits.end(), -kInfinity);
      for (int i = 0; i < 2; ++i) {
        const size_t at = rng() % logits.size();
        logits[at] = some[at];
      }
      break;
    }
    case 4:  // The largest distances in F32.
      for (int i = 0; i < 5; ++i) logits[rng() % logits.size()] = i % 2 == 0 ? 3.4e38f : -3.4e38f;
      break;
    case 5:  // Zeros of both signs, and numbers next to zero.
      for (float& logit : logits) {
        const float values[] = {0.0f, -0.0f, 1e-45f, -1e-45f, 1e-38f};
        logit = Pick(rng, values);
      }
      break;
    default:
      break;
  }
  return logits;
}

SamplingParams RandomParams(int vocab, std::mt19937& rng) {
  SamplingParams p;
  const float temperatures[] = {0.0f, 1e-30f, 0.05f, 0.7f, 1.0f, 1.0f, 1.5f, 100.0f};
  p.temperature = Pick(rng, temperatures);
  const int32_t top_ks[] = {0, 0, 0, 1, 2, 40, 299, vocab - 1, vocab, 1'000'000};
  p.top_k = Pick(rng, top_ks);
  const float top_ps[] = {1.0f, 1.0f, 0.999f, 0.95f, 0.5f, 0.05f, 1e-20f};
  p.top_p = Pick(rng, top_ps);
  const float min_ps[] = {0.0f, 0.0f, 0.0f, 1e-30f, 0.02f, 0.3f, 1.0f};
  p.min_p = Pick(rng, min_ps);
  const float typical_ps[] = {1.0f, 1.0f, 1.0f, 0.999f, 0.9f, 0.5f, 0.01f};
  p.typical_p = Pick(rng, typical_ps);
  p.temperature_first = rng() % 2 == 0;
  if (rng() % 3 == 0) {
    const float repetitions[] = {1.0f, 1.1f, 2.0f, 0.5f, 100.0f, 1e-3f};
    p.repetition_penalty = Pick(rng, repetitions);
    const float additive[] = {0.0f, 0.5f, -1.0f, 2.0f, 100.0f, -100.0f};
    p.frequency_penalty = Pick(rng, additive);
    p.presence_penalty = Pick(rng, additive);
    p.count_prompt = rng() % 4 == 0;
  }
  if (rng() % 3 == 0) {
    const int counts[] = {1, 5, 100, kMaxLogitBiases};
    const int wanted = std::min(Pick(rng, counts), vocab / 2);
    std::vector<int32_t> ids;
    for (int i = 0; i < wanted; ++i) ids.push_back(static_cast<int32_t>(rng() % vocab));
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const float biases[] = {-1000.0f, -5.0f, 0.5f, 5.0f, 1000.0f};
    for (const int32_t id : ids) p.logit_bias.emplace_back(id, Pick(rng, biases));
  }
  p.seed = uint64_t{rng()} << 32 | rng();
  const int32_t logprobs[] = {-1, -1, 0, 1, 5, kMaxTopLogprobs};
  p.logprobs = Pick(rng, logprobs);
  p.masked_logprobs = rng() % 2 == 0;
  return p;
}

// Words of a mask that allows no token, to which tokens are added.
std::vector<uint32_t> NothingAllowed(int vocab) {
  std::vector<int32_t> tokens(vocab);
  std::iota(tokens.begin(), tokens.end(), 0);
  return AllBut(tokens, vocab);
}

void Allow(int32_t token, std::vector<uint32_t>& words) { words[token / 32] |= 1u << token % 32; }

std::vector<uint32_t> RandomMask(int vocab, std::mt19937& rng) {
  const std::vector<uint32_t> none = NothingAllowed(vocab);
  std::vector<uint32_t> words(TokenMask::WordsFor(vocab), ~0u);
  const auto allow_only = [&](int count) {
    words = none;
    for (int i = 0; i < count; ++i) Allow(static_cast<int32_t>(rng() % vocab), words);
  };
  switch (rng() % 8) {
    case 0:  // All.
      break;
    case 1:  // Nearly all.
      for (int i = 0; i < 30; ++i) {
        const auto token = static_cast<int32_t>(rng() % vocab);
        words[token / 32] &= ~(1u << token % 32);
      }
      break;
    case 2:
    case 3:  // About half.
      for (size_t i = 0; i < words.size(); ++i) words[i] = rng() | none[i];
      break;
    case 4:  // A range, which begins and ends within words.
      words = none;
      for (auto token = static_cast<int32_t>(rng() % vocab), left = vocab / 3 + 1;
           token < vocab && left > 0; ++token, --left) {
        Allow(token, words);
      }
      break;
    case 5:
      allow_only(1);
      break;
    case 6:
      allow_only(3);
      break;
    default:
      allow_only(300);
      break;
  }
  return words;
}

Draw RandomDraw(int vocab, std::mt19937& rng) {
  Draw draw;
  draw.logits = RandomLogits(vocab, rng);
  draw.params = RandomParams(vocab, rng);
  const int lengths[] = {1, 15, 16, 17, 300, 3000};
  draw.history.resize(Pick(rng, lengths));
  for (int32_t& token : draw.history) {
    // Some tokens are frequent, others occur once.
    token = static_cast<int32_t>(rng() % (rng() % 2 == 0 ? std::min(vocab, 20) : vocab));
  }
  draw.prompt_tokens = static_cast<int32_t>(rng() % (draw.history.size() + 1));
  if (rng() % 2 == 0) draw.mask = RandomMask(vocab, rng);
  draw.mask_follows = rng() % 2 == 0;
  if (rng() % 30 == 0) draw.logits[rng() % vocab] = rng() % 2 == 0 ? kNan : kInfinity;
  draw.flagged = rng() % 40 == 0;
  return draw;
}

class RandomSampleTest : public SampleTest, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Vocabularies, RandomSampleTest,
                         ::testing::Values(1, 7, 300, 4097, 151'936, 152'064));

TEST_P(RandomSampleTest, EveryCaseIsTheReferences) {
  const int vocab = GetParam();
  const int rows = vocab > 100'000 ? 64 : 250;
  const int rounds = vocab > 100'000 ? 6 : 10;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Draw> draws(rows);
    InParallel(rows, [&](int64_t i) {
      std::mt19937 rng(static_cast<uint32_t>(vocab + 1000 * round + i));
      draws[i] = RandomDraw(vocab, rng);
    });
    ExpectAsReference(draws);
    if (HasFatalFailure()) return;
  }
}

TEST_F(SampleTest, TheLargestVocabulary) {
  std::vector<Draw> draws(16);
  InParallel(static_cast<int64_t>(draws.size()), [&](int64_t i) {
    std::mt19937 rng(static_cast<uint32_t>(77 + i));
    draws[i] = RandomDraw(kernels().max_vocab, rng);
  });
  ExpectAsReference(draws);
}

// Filters one at a time over an ordinary distribution, at many seeds.
TEST_F(SampleTest, EachFilterAlone) {
  constexpr int kVocab = 151'936;
  std::mt19937 rng(4);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = 3 * Bell(rng);
  std::vector<Draw> draws;
  for (int i = 0; i < 120; ++i) {
    Draw draw = {.logits = logits, .params = {}, .history = {1, 2, 3}};
    draw.params.seed = i;
    draw.params.temperature = i % 4 < 2 ? 0.8f : 1.6f;
    draw.params.temperature_first = i >= 60;
    switch (i % 5) {
      case 0:
        draw.params.top_k = 1 + i * i;
        break;
      case 1:
        draw.params.top_p = 0.99f - 0.015f * static_cast<float>(i % 60);
        break;
      case 2:
        draw.params.min_p = 0.001f * static_cast<float>(i % 60 + 1);
        break;
      case 3:
        draw.params.typical_p = 0.99f - 0.015f * static_cast<float>(i % 60);
        break;
      default:
        break;
    }
    draws.push_back(std::move(draw));
  }
  ExpectAsReference(draws);
}

// Every bit of a word in turn is the only token that may be drawn, whatever the parameters are, and
// has all of the probability that the mask leaves.
TEST_F(SampleTest, TheOnlyTokenOfAMask) {
  for (const int vocab : {1000, 151'936}) {
    std::mt19937 rng(vocab);
    std::vector<Draw> draws;
    for (int i = 0; i < 120; ++i) {
      // The first and last tokens of threads and of blocks, which own odd numbers of tokens.
      const int32_t token = i < 64 ? i : i < 96 ? vocab - 1 - (i - 64) : vocab / 120 * i;
      Draw draw = {.logits = std::vector<float>(vocab), .params = {}, .history = {token, 4, token}};
      for (float& logit : draw.logits) logit = 3 * Bell(rng);
      draw.params = RandomParams(vocab, rng);
      draw.params.logprobs = 5;
      draw.params.masked_logprobs = true;
      draw.mask = NothingAllowed(vocab);
      Allow(token, draw.mask);
      draw.mask_follows = i % 2 == 0;
      draws.push_back(std::move(draw));
    }
    ExpectAsReference(draws);
    if (HasFatalFailure()) return;
  }
}

// A token of the prompt only, a generated token, a token of both, and more occurrences than are
// counted: each logit differs from its neighbours' by 0.5 at most.
TEST_F(SampleTest, PenaltiesTellThePromptFromWhatWasGenerated) {
  constexpr int kVocab = 5000;
  std::vector<Draw> draws;
  for (const bool count_prompt : {false, true}) {
    for (const int32_t token : {0, 1, 4, 2500, 4998, 4999}) {
      for (const int generated : {0, 1, 2, 3000, 70'000}) {
        Draw draw = {.logits = std::vector<float>(kVocab, 1.0f),
                     .params = {},
                     .history = std::vector<int32_t>(40, token),
                     .prompt_tokens = 40};
        draw.history.insert(draw.history.end(), generated, token);
        draw.logits[token] = 1.5f;
        draw.logits[token ^ 1] = 1.25f;
        draw.params.temperature = 0;
        draw.params.frequency_penalty = 0.00001f;
        draw.params.presence_penalty = 0.1f;
        draw.params.count_prompt = count_prompt;
        draws.push_back(draw);
        draw.params.repetition_penalty = 1.1f;
        draws.push_back(draw);
        draw.params.temperature = 1;
        draw.params.seed = draws.size();
        draws.push_back(draw);
      }
    }
  }
  ExpectAsReference(draws);
}

TEST_F(SampleTest, NotFiniteWhereverItStands) {
  for (const int vocab : {300, 151'936}) {
    std::vector<Draw> draws;
    for (const float bad : {kNan, -kNan, kInfinity}) {
      for (const int at : {0, 1, vocab / 2, vocab - 1}) {
        for (const float temperature : {0.0f, 1.0f}) {
          Draw draw = {.logits = std::vector<float>(vocab, 1.0f), .params = {}, .history = {5}};
          draw.logits[at] = bad;
          draw.params.temperature = temperature;
          draw.params.logprobs = 3;
          draws.push_back(draw);
        }
      }
    }
    // No token to draw: none from the start, and none that the mask allows.
    Draw none = {.logits = std::vector<float>(vocab, -kInfinity), .params = {}, .history = {5}};
    none.params.logprobs = 3;
    draws.push_back(none);
    none.logits[7] = 2;
    none.mask = AllBut(std::vector<int32_t>{7}, vocab);
    draws.push_back(none);
    none.params.masked_logprobs = true;
    draws.push_back(none);
    // A logit that is not finite counts though the mask does not allow its token.
    Draw masked = {.logits = std::vector<float>(vocab, 1.0f), .params = {}, .history = {5}};
    masked.logits[7] = kNan;
    masked.mask = none.mask;
    draws.push_back(masked);
    masked.params.logprobs = 3;
    masked.params.masked_logprobs = true;
    draws.push_back(masked);
    // The flag of a sequence makes even its valid row not finite, and no other row.
    Draw good = {.logits = std::vector<float>(vocab, 1.0f), .params = {}, .history = {5}};
    draws.push_back(good);
    good.flagged = true;
    draws.push_back(good);
    ExpectAsReference(draws);
    if (HasFatalFailure()) return;
  }
}

// The same draw in steps of different sizes.
TEST_F(SampleTest, RowsDoNotMatterToEachOther) {
  std::vector<Draw> draws(40);
  for (size_t i = 0; i < draws.size(); ++i) {
    std::mt19937 rng(static_cast<uint32_t>(900 + i));
    draws[i] = RandomDraw(2000, rng);
  }
  ExpectAsReference(draws);
  for (size_t i = 0; i < draws.size(); i += 7) ExpectAsReference({draws[i]});
}

}  // namespace
}  // namespace orcd::cuda
