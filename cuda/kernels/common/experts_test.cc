// Tests of the kernels of mixtures of experts but for their products: the router, the choice of
// experts and the sorting of tokens, their gathered inputs and their added outputs.
#include "cuda/kernels/common/experts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/step.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/cpu/router.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Bits that integers keep if nothing was written.
constexpr int32_t kPoison = -1 ^ 0x55555555;

// --- The norm that also writes F32. --------------------------------------------------------------

class NormF32Test : public GpuTest {};

// With out_f32 a norm has the same residual and the same F16 values, which are those of out_f32
// rounded.
TEST_F(NormF32Test, IsTheSameNorm) {
  struct Case {
    int hidden;
    int tokens;
    int splits;
    bool plain = true;
    bool layer_norm = false;
    bool rows = false;
  };
  std::vector<Case> cases;
  for (const int hidden : {64, 100, 896, 2048, 2880, 8192}) {
    for (const int splits : {0, 1, 2, 8}) {
      for (const bool plain : {true, false}) cases.push_back({hidden, 9, splits, plain});
    }
    cases.push_back({hidden, 1, 1});
  }
  for (const int tokens : {511, 512, 1025}) {
    cases.push_back({2048, tokens, 0});
    cases.push_back({100, tokens, 0});
    cases.push_back({2048, tokens, 2});
  }
  cases.push_back({2048, 7, 2, true, true});
  cases.push_back({2048, 7, 2, true, false, true});
  cases.push_back({2048, 7, 2, false, false, true});
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message()
                 << c.hidden << " x " << c.tokens << " in " << c.splits << (c.plain ? "" : ", bias")
                 << (c.layer_norm ? ", layer norm" : "") << (c.rows ? ", of rows" : ""));
    const size_t values = size_t{1} * c.tokens * c.hidden;
    const std::vector<float> before = RandomFloats(values, 1, 20.0f);
    const DeviceArray<float> partials(RandomFloats(std::max(1, c.splits) * values, 2));
    const DeviceArray<float> weight(RandomFloats(c.hidden, 3));
    const DeviceArray<float> bias(RandomFloats(c.hidden, 4));
    std::vector<int32_t> rows(c.tokens);
    for (int i = 0; i < c.tokens; ++i) rows[i] = c.tokens - 1 - i;
    const DeviceArray<int32_t> device_rows(rows);
    const auto norm = [&](float* out_f32) {
      const DeviceArray<float> residual(before);
      const DeviceActivations out(c.tokens, c.hidden);
      EXPECT_EQ(LaunchNorm({.residual = residual.data(),
                            .partials = c.splits == 0 ? nullptr : partials.data(),
                            .splits = c.splits,
                            .partials_tokens = c.tokens,
                            .scale = 16,
                            .bias = c.plain ? nullptr : bias.data(),
                            .weight = weight.data(),
                            .kind = c.layer_norm ? NormKind::kLayer : NormKind::kRms,
                            .eps = 1e-6f,
                            .hidden = c.hidden,
                            .tokens = c.tokens,
                            .rows = c.rows ? device_rows.data() : nullptr,
                            .out = out.view(),
                            .out_f32 = out_f32},
                           stream()),
                cudaSuccess);
      EXPECT_EQ(out.WrittenOutside(), 0);
      return std::pair(residual.Read(), out.Read());
    };
    const auto without = norm(nullptr);
    const DeviceArray<float> out_f32(values + c.hidden);
    const auto with = norm(out_f32.data());
    EXPECT_TRUE(SameBits(with.first, without.first));
    EXPECT_TRUE(SameBits(with.second, without.second));
    std::vector<float> actual = out_f32.Read();
    for (size_t i = values; i < actual.size(); ++i) ASSERT_TRUE(IsPoison(actual[i])) << i;
    actual.resize(values);
    std::vector<uint16_t> rounded;
    rounded.reserve(values);
    for (const float value : actual) rounded.push_back(FloatToHalf(value));
    EXPECT_TRUE(SameBits(rounded, with.second));
    // They are not F16 numbers.
    EXPECT_NE(actual, ToFloats(rounded));
  }
}

// A branch with a bias is added by the fast kernel and, as a norm that shows its branch, by the one
// for any norm: the bits are the same.
TEST_F(NormF32Test, BiasOfABranchIsTheSameInBothKernels) {
  for (const int hidden : {64, 100, 896, 2880, 8192}) {
    for (const int splits : {0, 1, 2, 5, 8}) {
      for (const bool of_rows : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << hidden << " in " << splits << (of_rows ? ", of rows" : ""));
        constexpr int kTokens = 5;
        const size_t values = size_t{1} * kTokens * hidden;
        const std::vector<float> before = RandomFloats(values, 1, 20.0f);
        const DeviceArray<float> partials(RandomFloats(std::max(1, splits) * values, 2));
        const DeviceArray<float> weight(RandomFloats(hidden, 3));
        const DeviceArray<float> bias(RandomFloats(hidden, 4));
        const DeviceArray<int32_t> rows(std::vector<int32_t>{4, 2, 0, 3, 1});
        const DeviceArray<float> branch(values);
        const auto norm = [&](bool any, bool f32) {
          const DeviceArray<float> residual(before);
          const DeviceArray<float> out_f32(values);
          const DeviceActivations out(kTokens, hidden);
          EXPECT_EQ(LaunchNorm({.residual = residual.data(),
                                .partials = splits == 0 ? nullptr : partials.data(),
                                .splits = splits,
                                .partials_tokens = kTokens,
                                .scale = 1.7f,
                                .bias = bias.data(),
                                .weight = weight.data(),
                                .eps = 1e-6f,
                                .hidden = hidden,
                                .tokens = kTokens,
                                .rows = of_rows ? rows.data() : nullptr,
                                .out = out.view(),
                                .out_f32 = f32 ? out_f32.data() : nullptr,
                                .branch = any ? branch.data() : nullptr},
                               stream()),
                    cudaSuccess);
          return std::tuple(residual.Read(), out.Read(), out_f32.Read());
        };
        for (const bool f32 : {false, true}) {
          const auto fast = norm(false, f32);
          const auto any = norm(true, f32);
          EXPECT_TRUE(SameBits(std::get<0>(fast), std::get<0>(any)));
          EXPECT_TRUE(SameBits(std::get<1>(fast), std::get<1>(any)));
          EXPECT_TRUE(SameBits(std::get<2>(fast), std::get<2>(any)));
        }
      }
    }
  }
}

// --- The router. ---------------------------------------------------------------------------------

// A logit in the order of numeric_contract.h.
float HostLogit(const float* x, const float* weights, int hidden, float bias, bool biased) {
  const int cols = RouterClassCols(hidden);
  float sum = 0;
  for (int group = 0; group < 8; ++group) {
    float of_group = 0;
    for (int c = group * 4; c < group * 4 + 4; ++c) {
      float of_class = 0;
      for (int i = c * cols; i < std::min((c + 1) * cols, hidden); ++i) {
        of_class = std::fma(weights[i], x[i], of_class);
      }
      of_group += of_class;
    }
    sum += of_group;
  }
  return biased ? sum + bias : sum;
}

class RouterTest : public GpuTest {
 protected:
  // The logits of the rows of `x`.
  std::vector<float> Logits(const DeviceArray<float>& x, int first_token, RouterArgs args) {
    const size_t values = size_t{1} * args.tokens * args.outputs;
    const DeviceArray<float> logits(values + args.outputs);
    args.x = x.data() + size_t{1} * first_token * args.hidden;
    args.logits = logits.data();
    EXPECT_EQ(LaunchRouter(args, stream()), cudaSuccess);
    std::vector<float> actual = logits.Read();
    for (size_t i = values; i < actual.size(); ++i) EXPECT_TRUE(IsPoison(actual[i])) << i;
    actual.resize(values);
    return actual;
  }
};

TEST_F(RouterTest, SumsInOneOrderWhateverTheTokens) {
  struct Case {
    int count;
    int hidden;
    bool gated = false;
    bool bias = false;
  };
  for (const Case& c :
       {Case{2, 8}, Case{3, 64, true, true}, Case{8, 4096}, Case{32, 2880, false, true},
        Case{60, 2048, true}, Case{64, 104}, Case{65, 1024, false, true}, Case{128, 2048},
        Case{128, 1032, true, true}, Case{160, 5120}, Case{256, 7168}, Case{512, 2048, true}}) {
    const int count = c.count;
    const int hidden = c.hidden;
    const bool bias = c.bias;
    SCOPED_TRACE(::testing::Message() << count << " x " << hidden << (c.gated ? ", gated" : "")
                                      << (bias ? ", bias" : ""));
    const int outputs = count + (c.gated ? 1 : 0);
    // The tokens' rows repeat, so that the rows of many tokens are known from few.
    constexpr int kRows = 13;
    constexpr int kTokens = 4097;
    const std::vector<float> rows = RandomFloats(size_t{kRows} * hidden, 1, 3.0f);
    std::vector<float> x;
    x.reserve(size_t{kTokens} * hidden);
    for (int t = 0; t < kTokens; ++t) {
      const auto row = rows.begin() + size_t{1} * (t % kRows) * hidden;
      x.insert(x.end(), row, row + hidden);
    }
    const std::vector<float> weights = RandomFloats(size_t{1} * outputs * hidden, 2);
    const std::vector<float> biases = RandomFloats(count, 3);
    std::vector<float> expected(size_t{kRows} * outputs);
    InParallel(int64_t{kRows} * outputs, [&](int64_t i) {
      const int o = static_cast<int>(i % outputs);
      const float* const row = &rows[i / outputs * hidden];
      const float* const w = &weights[size_t{1} * o * hidden];
      const bool biased = bias && o < count;
      expected[i] = HostLogit(row, w, hidden, biased ? biases[o] : 0, biased);
    });
    // The order is right, and it is that of a sum at all.
    for (int o = 0; o < outputs; ++o) {
      double sum = bias && o < count ? double{biases[o]} : 0;
      double size = 0;
      for (int i = 0; i < hidden; ++i) {
        const double product = double{rows[i]} * double{weights[size_t{1} * o * hidden + i]};
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(expected[o], sum, 0x1p-24 * 16 * size + 0x1p-24 * std::abs(sum)) << o;
    }
    const DeviceArray<float> device_x(x);
    const DeviceArray<float> device_weights(weights);
    const DeviceArray<float> device_bias(biases);
    const RouterArgs args = {.weights = device_weights.data(),
                             .bias = bias ? device_bias.data() : nullptr,
                             .count = count,
                             .outputs = outputs,
                             .hidden = hidden};
    for (const int tokens : {1, 2, 3, 4, 7, 8, 9, 64, 65, 192, 193, 1000, 4096}) {
      SCOPED_TRACE(tokens);
      const int first = tokens == kTokens - 1 ? 0 : tokens % 5;
      RouterArgs of_tokens = args;
      of_tokens.tokens = tokens;
      const std::vector<float> actual = Logits(device_x, first, of_tokens);
      for (int t = 0; t < tokens; ++t) {
        const std::span<const float> row(&actual[size_t{1} * t * outputs], outputs);
        const std::span<const float> known(&expected[size_t{1} * ((first + t) % kRows) * outputs],
                                           outputs);
        ASSERT_TRUE(SameBits(row, known)) << "token " << t;
      }
    }
  }
}

TEST_F(RouterTest, NanStaysInItsToken) {
  constexpr int kCount = 128;
  constexpr int kHidden = 1032;
  const std::vector<float> weights = RandomFloats(kCount * kHidden, 2);
  const DeviceArray<float> device_weights(weights);
  for (const int tokens : {5, 300, 2000}) {
    std::vector<float> x = RandomFloats(size_t{1} * tokens * kHidden, 1);
    x[3 * kHidden + 1031] = kNan;
    x[4 * kHidden] = kInfinity;
    const DeviceArray<float> device_x(x);
    const std::vector<float> logits = Logits(device_x, 0,
                                             {.weights = device_weights.data(),
                                              .count = kCount,
                                              .outputs = kCount,
                                              .hidden = kHidden,
                                              .tokens = tokens});
    for (size_t i = 0; i < logits.size(); ++i) {
      const size_t token = i / kCount;
      if (token == 3) {
        ASSERT_TRUE(std::isnan(logits[i]));
      } else if (token == 4) {
        ASSERT_TRUE(std::isinf(logits[i]));
      } else {
        ASSERT_TRUE(std::isfinite(logits[i])) << i;
      }
    }
  }
}

// --- The choice. ---------------------------------------------------------------------------------

// The tables as a plain program makes them.
struct HostTables {
  std::vector<int32_t> chosen;
  std::vector<float> weights;
  std::vector<float> shared_weights;
  std::vector<int32_t> rows;
  std::vector<int32_t> tokens;
  std::vector<std::array<int32_t, 3>> tiles;
  ExpertLoad load;
};

int Outputs(const ExpertsSpec& spec) { return spec.count + (spec.shared_gated ? 1 : 0); }

// Here a shared expert joins the others whenever it may.
ExpertsSpec AllExperts(const ExpertsSpec& spec) {
  return cuda::AllExperts(spec, SharedMayJoin(spec));
}
bool GatesApart(const ExpertsSpec& spec) { return spec.shared_gated && !SharedMayJoin(spec); }

HostTables HostChoose(const ExpertsSpec& spec, const std::vector<float>& logits,
                      const std::vector<float>& bias, const std::vector<bool>& chooses,
                      int tile_rows) {
  const int tokens = static_cast<int>(chooses.size());
  const ExpertsSpec all = AllExperts(spec);
  HostTables t;
  t.chosen.assign(size_t{1} * tokens * all.used, -1);
  t.weights.assign(t.chosen.size(), 0.0f);
  t.rows.assign(t.chosen.size(), -1);
  if (GatesApart(spec)) t.shared_weights.assign(tokens, 0.0f);
  InParallel(tokens, [&](int64_t token) {
    if (!chooses[token]) return;
    const float* const row = &logits[token * Outputs(spec)];
    std::vector<cpu::ChosenExpert> chosen(spec.used);
    cpu::ChooseExperts(spec, {row, static_cast<size_t>(spec.count)}, bias, chosen);
    for (int j = 0; j < spec.used; ++j) {
      t.chosen[token * all.used + j] = chosen[j].expert;
      t.weights[token * all.used + j] = chosen[j].weight;
    }
    const float weight =
        spec.shared_gated ? static_cast<float>(1 / (1 + std::exp(-double{row[spec.count]}))) : 1.0f;
    if (GatesApart(spec)) t.shared_weights[token] = weight;
    if (SharedMayJoin(spec)) {
      t.chosen[token * all.used + spec.used] = spec.count;
      t.weights[token * all.used + spec.used] = weight;
    }
  });
  std::vector<std::vector<int32_t>> of_expert(all.count);
  for (size_t choice = 0; choice < t.chosen.size(); ++choice) {
    if (t.chosen[choice] < 0) continue;
    of_expert[t.chosen[choice]].push_back(static_cast<int32_t>(choice));
  }
  t.tokens.assign(MaxExpertRows(all, tokens), -1);
  int row = 0;
  for (int e = 0; e < all.count; ++e) {
    const int count = static_cast<int>(of_expert[e].size());
    if (count == 0) continue;
    if (e < spec.count) t.load.Add(count);
    for (int first = 0; first < count; first += tile_rows) {
      t.tiles.push_back({e, row + first, std::min(tile_rows, count - first)});
    }
    for (const int32_t choice : of_expert[e]) {
      t.rows[choice] = row;
      t.tokens[row++] = choice / all.used;
    }
    row = RoundUpTo(row, kExpertRowAlign);
  }
  EXPECT_LE(row, static_cast<int>(t.tokens.size()));
  EXPECT_LE(static_cast<int>(t.tiles.size()), MaxExpertTiles(all, tokens, tile_rows));
  t.tiles.resize(MaxExpertTiles(all, tokens, tile_rows), {0, 0, 0});
  return t;
}

// An array that integers poison recognisably, with room behind its values that stays as it is.
template <typename T>
class GuardedArray {
 public:
  explicit GuardedArray(size_t count) : count_(count), array_(count + kRoom) {
    array_.Fill(kPoison & 0xFF);
  }
  T* data() const { return array_.data(); }
  std::vector<T> Read() const {
    std::vector<T> values = array_.Read();
    std::vector<uint8_t> room(kRoom * sizeof(T));
    std::memcpy(room.data(), &values[count_], room.size());
    EXPECT_TRUE(std::ranges::all_of(room, [](uint8_t b) { return b == (kPoison & 0xFF); }));
    values.resize(count_);
    return values;
  }

 private:
  static constexpr size_t kRoom = 16;
  size_t count_;
  DeviceArray<T> array_;
};

// F64 results of two machines differ by a few units in the last place, so their F32 roundings by at
// most one.
::testing::AssertionResult NearWeights(const std::vector<float>& actual,
                                       const std::vector<float>& expected) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes";
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    if (expected[i] == actual[i]) continue;
    const double off = std::abs(double{actual[i]} - double{expected[i]});
    if (!(off <= 0x1p-23 * std::abs(double{expected[i]}) + 0x1p-149)) {
      return ::testing::AssertionFailure()
             << "at " << i << ": " << actual[i] << " instead of " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

class ChooseExpertsTest : public GpuTest {
 protected:
  // A token's row of logits, of which `outputs` are to be filled.
  using Fill = std::function<void(int token, std::span<float> row, std::mt19937& rng)>;

  static std::vector<float> MakeLogits(const ExpertsSpec& spec, int tokens, const Fill& fill) {
    std::vector<float> logits(size_t{1} * tokens * Outputs(spec));
    InParallel(tokens, [&](int64_t token) {
      std::mt19937 rng(static_cast<uint32_t>(token * kMaxGpuExperts + spec.count));
      fill(static_cast<int>(token), std::span(logits).subspan(token * Outputs(spec), Outputs(spec)),
           rng);
    });
    return logits;
  }

  struct Tables {
    Tables(const ExpertsSpec& spec, int tokens, int tile_rows)
        : chosen(size_t{1} * tokens * AllExperts(spec).used),
          weights(size_t{1} * tokens * AllExperts(spec).used),
          shared_weights(GatesApart(spec) ? tokens : 0),
          rows(size_t{1} * tokens * AllExperts(spec).used),
          tokens(MaxExpertRows(AllExperts(spec), tokens)),
          tiles(size_t{1} * MaxExpertTiles(AllExperts(spec), tokens, tile_rows)) {}

    ExpertTables view(const ExpertsSpec& spec) const {
      return {.chosen = chosen.data(),
              .weights = weights.data(),
              .shared_weights = GatesApart(spec) ? shared_weights.data() : nullptr,
              .rows = rows.data(),
              .tokens = tokens.data(),
              .tiles = tiles.data()};
    }

    GuardedArray<int32_t> chosen;
    GuardedArray<float> weights;
    GuardedArray<float> shared_weights;
    GuardedArray<int32_t> rows;
    GuardedArray<int32_t> tokens;
    GuardedArray<ExpertTile> tiles;
  };

  void SetUp() override {
    GpuTest::SetUp();
    auto pinned = PinnedMemory::Allocate(sizeof(ExpertLoad), "a test");
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    pinned_ = *std::move(pinned);
  }

  static void ExpectLoad(const ExpertLoad& actual, const ExpertLoad& expected) {
    EXPECT_EQ(actual.experts, expected.experts);
    EXPECT_EQ(actual.tokens, expected.tokens);
  }

  // Chooses on the GPU and checks all results; returns what was chosen and the weights.
  std::pair<std::vector<int32_t>, std::vector<float>> Check(const ExpertsSpec& spec,
                                                            const std::vector<float>& logits,
                                                            const std::vector<float>& bias,
                                                            const std::vector<bool>& chooses) {
    const int tokens = static_cast<int>(chooses.size());
    const int tile_rows = ExpertTileRows(AllExperts(spec), tokens);
    const HostTables expected = HostChoose(spec, logits, bias, chooses, tile_rows);
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<float> device_bias(bias);
    std::vector<TokenEntry> entries;
    entries.reserve(tokens);
    for (int t = 0; t < tokens; ++t) {
      entries.push_back({.id = 0, .sequence = chooses[t] ? t % 3 : -1, .position = t});
    }
    const DeviceArray<TokenEntry> device_entries(entries);
    const bool all = std::ranges::all_of(chooses, [](bool chooses_too) { return chooses_too; });
    ExpertLoad load;
    load.experts[3] = 5;
    load.tokens = uint64_t{1} << 40;
    DeviceArray<ExpertLoad> device_load(std::span<const ExpertLoad>(&load, 1));
    auto* const published = reinterpret_cast<ExpertLoad*>(pinned_.data());
    *published = ExpertLoad();

    const Tables tables(spec, tokens, tile_rows);
    const ChooseExpertsArgs args = {.spec = spec,
                                    .shared_joins = SharedMayJoin(spec),
                                    .logits = device_logits.data(),
                                    .selection_bias = bias.empty() ? nullptr : device_bias.data(),
                                    .step_tokens = all ? nullptr : device_entries.data(),
                                    .tokens = tokens,
                                    .tile_rows = tile_rows,
                                    .tables = tables.view(spec),
                                    .load = device_load.data()};
    EXPECT_EQ(LaunchChooseExperts(args, stream()), cudaSuccess);
    const std::vector<int32_t> chosen = tables.chosen.Read();
    const std::vector<float> weights = tables.weights.Read();
    EXPECT_TRUE(SameBits(chosen, expected.chosen));
    EXPECT_TRUE(NearWeights(weights, expected.weights));
    if (GatesApart(spec)) {
      EXPECT_TRUE(NearWeights(tables.shared_weights.Read(), expected.shared_weights));
    }
    EXPECT_TRUE(SameBits(tables.rows.Read(), expected.rows));
    EXPECT_TRUE(SameBits(tables.tokens.Read(), expected.tokens));
    std::vector<std::array<int32_t, 3>> tiles;
    for (const ExpertTile& tile : tables.tiles.Read()) {
      tiles.push_back({tile.expert, tile.first_row, tile.rows});
    }
    EXPECT_EQ(tiles, expected.tiles);
    load += expected.load;
    ExpectLoad(device_load.Read()[0], load);
    ExpectLoad(*published, ExpertLoad());

    // Again, as the step's last layer with experts.
    const Tables again(spec, tokens, tile_rows);
    ChooseExpertsArgs last = args;
    last.tables = again.view(spec);
    last.published_load = published;
    EXPECT_EQ(LaunchChooseExperts(last, stream()), cudaSuccess);
    EXPECT_TRUE(SameBits(again.chosen.Read(), chosen));
    EXPECT_TRUE(SameBits(again.weights.Read(), weights));
    EXPECT_TRUE(SameBits(again.rows.Read(), expected.rows));
    load += expected.load;
    ExpectLoad(device_load.Read()[0], load);
    ExpectLoad(*published, load);
    return {chosen, weights};
  }

  static void RandomRow(int, std::span<float> row, std::mt19937& rng) {
    std::normal_distribution<float> normal(0, 2);
    for (float& logit : row) logit = normal(rng);
  }
  // Few values, so that nearly every score has an equal.
  static void TiedRow(int, std::span<float> row, std::mt19937& rng) {
    std::uniform_int_distribution<int> level(-2, 2);
    for (float& logit : row) logit = static_cast<float>(level(rng)) / 2;
  }

 private:
  PinnedMemory pinned_;
};

std::vector<bool> AllChoose(int tokens) { return std::vector<bool>(tokens, true); }

// Specs of models that there are, and of none.
std::vector<ExpertsSpec> Specs() {
  constexpr auto kSoftmax = RouterScore::kSoftmax;
  constexpr auto kSigmoid = RouterScore::kSigmoid;
  constexpr auto kChosen = RouterScore::kSoftmaxOfChosen;
  return {{.count = 128, .used = 8, .ffn = 8, .score = kSoftmax, .normalise = true},
          {.count = 8, .used = 2, .ffn = 8, .score = kSoftmax, .normalise = true},
          {.count = 60, .used = 4, .ffn = 8, .shared_ffn = 8, .shared_gated = true},
          {.count = 60, .used = 4, .ffn = 8, .shared_ffn = 16, .shared_gated = true},
          {.count = 32, .used = 4, .ffn = 8, .score = kChosen},
          {.count = 128,
           .used = 8,
           .ffn = 8,
           .shared_ffn = 8,
           .score = kSigmoid,
           .normalise = true,
           .scale = 2.5f},
          {.count = 256,
           .used = 8,
           .ffn = 8,
           .score = kSigmoid,
           .groups = 8,
           .groups_used = 4,
           .normalise = true,
           .scale = 2.5f},
          {.count = 160,
           .used = 6,
           .ffn = 8,
           .score = kSoftmax,
           .groups = 8,
           .groups_used = 3,
           .scale = 16},
          {.count = 512,
           .used = 10,
           .ffn = 8,
           .shared_ffn = 8,
           .shared_gated = true,
           .score = kSoftmax,
           .normalise = true},
          {.count = 2, .used = 1, .ffn = 8, .score = kChosen},
          {.count = 3, .used = 3, .ffn = 8, .score = kSigmoid},
          {.count = 17, .used = 16, .ffn = 8, .score = kChosen, .scale = 0.5f},
          {.count = 80,
           .used = 5,
           .ffn = 8,
           .score = kChosen,
           .groups = 40,
           .groups_used = 5,
           .normalise = true},
          {.count = 12, .used = 2, .ffn = 8, .score = kSigmoid, .groups = 12, .groups_used = 3},
          {.count = 1024, .used = 32, .ffn = 8, .score = kSoftmax, .normalise = true}};
}

std::string Name(const ExpertsSpec& spec) {
  return std::to_string(spec.used) + " of " + std::to_string(spec.count) + ", score " +
         std::to_string(static_cast<int>(spec.score)) + ", " + std::to_string(spec.groups) +
         " groups, shared width " + std::to_string(spec.shared_ffn);
}

constexpr int kTokenCounts[] = {1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 512, 513, 1000, 4096};

TEST_F(ChooseExpertsTest, AsTheCpuChooses) {
  for (const ExpertsSpec& spec : Specs()) {
    for (const bool has_bias : {false, true}) {
      for (const bool tied : {false, true}) {
        for (const int tokens : kTokenCounts) {
          SCOPED_TRACE(::testing::Message() << Name(spec) << (has_bias ? ", bias" : "")
                                            << (tied ? ", ties, " : ", ") << tokens << " tokens");
          std::vector<float> bias;
          if (has_bias) {
            bias = RandomFloats(spec.count, 5, 0.1f);
            if (tied) {
              for (float& value : bias) value = value > 0 ? 0.125f : 0.0f;
            }
          }
          Check(spec, MakeLogits(spec, tokens, tied ? TiedRow : RandomRow), bias,
                AllChoose(tokens));
        }
      }
    }
  }
}

TEST_F(ChooseExpertsTest, AllScoresAreTheSame) {
  for (const ExpertsSpec& spec : Specs()) {
    for (const int tokens : kTokenCounts) {
      SCOPED_TRACE(::testing::Message() << Name(spec) << ", " << tokens << " tokens");
      // Two zeros are one score.
      const auto zeros = [](int token, std::span<float> row, std::mt19937&) {
        for (size_t i = 0; i < row.size(); ++i) row[i] = (i + token) % 2 == 0 ? 0.0f : -0.0f;
      };
      Check(spec, MakeLogits(spec, tokens, zeros), {}, AllChoose(tokens));
    }
  }
}

// Logits that differ, but whose exponentials are one number: the lower indices are chosen.
TEST_F(ChooseExpertsTest, LogitsThatDifferHaveEqualScores) {
  for (const ExpertsSpec& spec : Specs()) {
    for (const int tokens : {1, 9, 17, 600}) {
      SCOPED_TRACE(::testing::Message() << Name(spec) << ", " << tokens << " tokens");
      const auto fill = [](int token, std::span<float> row, std::mt19937& rng) {
        RandomRow(token, row, rng);
        for (float& logit : row) logit *= 1e-20f;
        // Some tokens have two scores.
        if (token % 2 == 0) row[rng() % row.size()] = 3;
      };
      Check(spec, MakeLogits(spec, tokens, fill), {}, AllChoose(tokens));
    }
  }
}

TEST_F(ChooseExpertsTest, OneExpertGetsAllTokens) {
  for (const ExpertsSpec& spec : Specs()) {
    for (const int expert : {0, spec.count / 2, spec.count - 1}) {
      for (const int tokens : {1, 8, 9, 64, 65, 1000, 4096}) {
        SCOPED_TRACE(::testing::Message()
                     << Name(spec) << ", " << tokens << " tokens, expert " << expert);
        const auto fill = [expert](int token, std::span<float> row, std::mt19937& rng) {
          RandomRow(token, row, rng);
          row[expert] = 30;
        };
        Check(spec, MakeLogits(spec, tokens, fill), {}, AllChoose(tokens));
      }
    }
  }
}

TEST_F(ChooseExpertsTest, LogitsThatAreNotFinite) {
  for (const ExpertsSpec& spec : Specs()) {
    for (const bool has_bias : {false, true}) {
      for (const int tokens : {1, 9, 64, 65, 1000}) {
        SCOPED_TRACE(::testing::Message()
                     << Name(spec) << (has_bias ? ", bias, " : ", ") << tokens << " tokens");
        const auto fill = [](int token, std::span<float> row, std::mt19937& rng) {
          RandomRow(token, row, rng);
          const auto any = [&] { return rng() % row.size(); };
          switch ((token + row.size()) % 10) {
            case 0:
              row[any()] = kNan;
              break;
            case 1:
              row[any()] = kInfinity;
              break;
            case 2:
              row[any()] = -kInfinity;
              break;
            case 3:
              std::ranges::fill(row, kNan);
              break;
            case 4:
              std::ranges::fill(row, -kInfinity);
              break;
            case 5:
              std::ranges::fill(row, kInfinity);
              break;
            case 6:
              row[0] = kNan;
              row[any()] = kInfinity;
              row[any()] = -kInfinity;
              break;
            case 7:
              // Exponentials that underflow, or overflow.
              for (float& logit : row) logit *= 1000;
              break;
            case 8:
              for (float& logit : row) logit = rng() % 2 == 0 ? -kInfinity : 1.0f;
              break;
            default:
              break;
          }
        };
        const std::vector<float> bias =
            has_bias ? RandomFloats(spec.count, 5, 0.1f) : std::vector<float>();
        Check(spec, MakeLogits(spec, tokens, fill), bias, AllChoose(tokens));
      }
    }
  }
}

TEST_F(ChooseExpertsTest, TokensThatPadTheStepChooseNothing) {
  for (const ExpertsSpec& spec : Specs()) {
    for (const int tokens : {1, 2, 9, 64, 65, 1000}) {
      for (const int kind : {0, 1, 2}) {
        SCOPED_TRACE(::testing::Message() << Name(spec) << ", " << tokens << " tokens, " << kind);
        // The last tokens, every third one, or all.
        std::vector<bool> chooses(tokens);
        for (int t = 0; t < tokens; ++t) {
          chooses[t] = kind == 0 ? t < (tokens + 1) / 2 : kind == 1 && t % 3 != 0;
        }
        // Logits of padding may be anything.
        const auto fill = [&](int token, std::span<float> row, std::mt19937& rng) {
          RandomRow(token, row, rng);
          if (!chooses[token]) std::ranges::fill(row, kNan);
        };
        Check(spec, MakeLogits(spec, tokens, fill), {}, chooses);
      }
    }
  }
}

TEST_F(ChooseExpertsTest, DoNotDependOnTheOtherTokens) {
  constexpr int kTokens = 1000;
  for (const ExpertsSpec& spec : Specs()) {
    SCOPED_TRACE(Name(spec));
    const std::vector<float> logits = MakeLogits(spec, kTokens, RandomRow);
    const std::vector<float> bias = RandomFloats(spec.count, 5, 0.1f);
    const auto all = Check(spec, logits, bias, AllChoose(kTokens));
    for (const auto& [first, tokens] : {std::pair{0, 1}, {999, 1}, {500, 1}, {3, 5}, {100, 64}}) {
      const auto from = logits.begin() + size_t{1} * first * Outputs(spec);
      const std::vector<float> some(from, from + size_t{1} * tokens * Outputs(spec));
      const auto alone = Check(spec, some, bias, AllChoose(tokens));
      const size_t at = size_t{1} * first * AllExperts(spec).used;
      const size_t count = size_t{1} * tokens * AllExperts(spec).used;
      EXPECT_TRUE(SameBits(std::span<const int32_t>(alone.first),
                           std::span<const int32_t>(all.first).subspan(at, count)));
      EXPECT_TRUE(SameBits(std::span<const float>(alone.second),
                           std::span<const float>(all.second).subspan(at, count)));
    }
  }
}

// One launch writes what those of the norm, the router and the choice write.
class RouteOneTokenTest : public ChooseExpertsTest {
 protected:
  struct Case {
    ExpertsSpec spec;
    int hidden;
    int splits;
    bool biases;
    bool chooses;
  };

  void SetUp() override {
    ChooseExpertsTest::SetUp();
    if (!IsSkipped() && kernels().route_one_token == nullptr) {
      GTEST_SKIP() << "the kernel set " << kernels().name << " has no such kernel";
    }
  }

  // A layer's constants, and what the launches before leave it.
  struct Layer {
    explicit Layer(const Case& of)
        : c(of),
          tile_rows(ExpertTileRows(AllExperts(of.spec), 1)),
          before(RandomFloats(of.hidden, 1, 20.0f)),
          residual(before),
          partials(RandomFloats(size_t{8} * of.splits * of.hidden + 1, 2)),
          norm_weight(RandomFloats(of.hidden, 3)),
          norm_bias(RandomFloats(of.hidden, 4)),
          router_weights(RandomFloats(size_t{1} * Outputs(of.spec) * of.hidden, 5, 0.05f)),
          router_bias(RandomFloats(of.spec.count, 6)),
          selection_bias(RandomFloats(of.spec.count, 7, 0.1f)),
          step_tokens(
              std::vector<TokenEntry>{{.id = 0, .sequence = of.chooses ? 0 : -1, .position = 0}}) {}

    Case c;
    int tile_rows;
    std::vector<float> before;
    DeviceArray<float> residual;
    DeviceArray<float> partials;
    DeviceArray<float> norm_weight;
    DeviceArray<float> norm_bias;
    DeviceArray<float> router_weights;
    DeviceArray<float> router_bias;
    DeviceArray<float> selection_bias;
    DeviceArray<TokenEntry> step_tokens;
  };
  struct Result {
    explicit Result(const Layer& of)
        : residual(of.c.hidden),
          out(1, of.c.hidden),
          x(of.c.hidden),
          logits(Outputs(of.c.spec)),
          tables(of.c.spec, 1, of.tile_rows),
          load(1) {
      load.Fill(0);
    }
    DeviceArray<float> residual;
    DeviceActivations out;
    DeviceArray<float> x;
    DeviceArray<float> logits;
    Tables tables;
    DeviceArray<ExpertLoad> load;
  };

  static RouteOneTokenArgs ArgsOf(const Layer& of, const Result& to) {
    const ExpertsSpec& spec = of.c.spec;
    return {.norm = {.residual = of.residual.data(),
                     .new_residual = to.residual.data(),
                     .partials = of.c.splits == 0 ? nullptr : of.partials.data(),
                     .splits = of.c.splits,
                     .partials_tokens = 8,
                     .scale = 0.25f,
                     .bias = of.c.biases ? of.norm_bias.data() : nullptr,
                     .weight = of.norm_weight.data(),
                     .eps = 1e-6f,
                     .hidden = of.c.hidden,
                     .tokens = 1,
                     .out = to.out.view()},
            .router = {.x = to.x.data(),
                       .weights = of.router_weights.data(),
                       .bias = of.c.biases ? of.router_bias.data() : nullptr,
                       .count = spec.count,
                       .outputs = Outputs(spec),
                       .hidden = of.c.hidden,
                       .tokens = 1,
                       .logits = to.logits.data()},
            .choice = {.spec = spec,
                       .shared_joins = SharedMayJoin(spec),
                       .logits = to.logits.data(),
                       .selection_bias = of.c.biases ? of.selection_bias.data() : nullptr,
                       .step_tokens = of.step_tokens.data(),
                       .tokens = 1,
                       .tile_rows = of.tile_rows,
                       .tables = to.tables.view(spec),
                       .load = to.load.data()}};
  }

  // The three launches.
  Result Expected(const Layer& of) {
    Result result(of);
    RouteOneTokenArgs args = ArgsOf(of, result);
    args.norm.residual = result.residual.data();
    result.residual.Write(of.before);
    args.norm.out_f32 = result.x.data();
    EXPECT_EQ(LaunchNorm(args.norm, stream()), cudaSuccess);
    EXPECT_EQ(LaunchRouter(args.router, stream()), cudaSuccess);
    EXPECT_EQ(LaunchChooseExperts(args.choice, stream()), cudaSuccess);
    return result;
  }

  static void ExpectSame(const Layer& of, const Result& actual, const Result& expected) {
    EXPECT_TRUE(SameBits(actual.residual.Read(), expected.residual.Read()));
    EXPECT_TRUE(SameBits(of.residual.Read(), of.before));
    EXPECT_TRUE(SameBits(actual.out.Read(), expected.out.Read()));
    EXPECT_EQ(actual.out.WrittenOutside(), 0);
    EXPECT_TRUE(SameBits(actual.tables.chosen.Read(), expected.tables.chosen.Read()));
    EXPECT_TRUE(SameBits(actual.tables.weights.Read(), expected.tables.weights.Read()));
    if (GatesApart(of.c.spec)) {
      EXPECT_TRUE(
          SameBits(actual.tables.shared_weights.Read(), expected.tables.shared_weights.Read()));
    }
    EXPECT_TRUE(SameBits(actual.tables.rows.Read(), expected.tables.rows.Read()));
    EXPECT_TRUE(SameBits(actual.tables.tokens.Read(), expected.tables.tokens.Read()));
    const auto tiles = actual.tables.tiles.Read();
    const auto expected_tiles = expected.tables.tiles.Read();
    ASSERT_EQ(tiles.size(), expected_tiles.size());
    EXPECT_EQ(std::memcmp(tiles.data(), expected_tiles.data(), tiles.size() * sizeof(ExpertTile)),
              0);
    ExpectLoad(actual.load.Read()[0], expected.load.Read()[0]);
  }

  static DeviceArray<uint64_t> Zeros(size_t count) {
    DeviceArray<uint64_t> zeros(count);
    zeros.Fill(0);
    return zeros;
  }

  void Check(const Case& c) {
    const Layer layer(c);
    const Result expected = Expected(layer);
    const DeviceArray<uint64_t> passed = Zeros(1 + Outputs(c.spec));
    // The second launch finds what the first one leaves.
    for (uint64_t turn = 1; turn <= 2; ++turn) {
      const Result actual(layer);
      RouteOneTokenArgs args = ArgsOf(layer, actual);
      args.passed = passed.data();
      ASSERT_TRUE(RoutesOneToken(args.norm, c.spec));
      // Once as on a part of a GPU.
      DeviceTraits device = traits();
      if (turn == 2) device.sms = 16;
      ASSERT_EQ(kernels().route_one_token(args, device, stream()), cudaSuccess);
      ExpectSame(layer, actual, expected);
      EXPECT_EQ(passed.Read()[0], turn);
    }
  }
};

TEST_F(RouteOneTokenTest, IsNormAndRouterAndChoice) {
  for (const ExpertsSpec& spec : Specs()) {
    if (spec.count > kMaxRoutedExperts) continue;
    for (const int hidden : {64, 896, 1088, 2048, 2880, 4096}) {
      for (const int splits : {0, 1, 3, 8}) {
        SCOPED_TRACE(::testing::Message() << Name(spec) << ", " << hidden << " in " << splits);
        Check({spec, hidden, splits, /*biases=*/false, /*chooses=*/true});
        Check({spec, hidden, splits, /*biases=*/true, /*chooses=*/hidden != 896});
      }
    }
  }
}

// Launches of two layers in turn, each of which begins before the one before it has ended.
TEST_F(RouteOneTokenTest, LaunchesFollowOneAnother) {
  const Layer layers[] = {Layer({.spec = {.count = 256,
                                          .used = 8,
                                          .ffn = 8,
                                          .shared_ffn = 8,
                                          .shared_gated = true,
                                          .normalise = true},
                                 .hidden = 2048,
                                 .splits = 4,
                                 .biases = false,
                                 .chooses = true}),
                          Layer({.spec = {.count = 32, .used = 4, .ffn = 8},
                                 .hidden = 2880,
                                 .splits = 2,
                                 .biases = true,
                                 .chooses = true})};
  const DeviceArray<uint64_t> passed = Zeros(1 + kMaxRoutedExperts);
  constexpr int kTurns = 100;
  std::vector<Result> results;
  results.reserve(2 * kTurns);
  for (int i = 0; i < 2 * kTurns; ++i) results.emplace_back(layers[i % 2]);
  for (int i = 0; i < 2 * kTurns; ++i) {
    RouteOneTokenArgs args = ArgsOf(layers[i % 2], results[i]);
    args.passed = passed.data();
    ASSERT_EQ(kernels().route_one_token(args, traits(), stream()), cudaSuccess);
  }
  const Result expected[] = {Expected(layers[0]), Expected(layers[1])};
  for (int i = 0; i < 2 * kTurns; ++i) ExpectSame(layers[i % 2], results[i], expected[i % 2]);
  EXPECT_EQ(passed.Read()[0], 2 * kTurns);
}

// --- Rows. ---------------------------------------------------------------------------------------

class GatherExpertRowsTest : public GpuTest {};

TEST_F(GatherExpertRowsTest, TakesRowsOfTokens) {
  constexpr int kTokens = 77;
  for (const int cols : {64, 192, 1024, 2048, 2880}) {
    const std::vector<float> values = RandomFloats(size_t{1} * kTokens * cols, 72);
    const DeviceActivations x(values, kTokens, cols);
    const std::vector<uint16_t> halves = x.Read();
    for (const int rows : {8, 64, 1000}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
      std::mt19937 rng(rows);
      std::vector<int32_t> tokens(rows);
      for (int r = 0; r < rows; ++r) {
        // Also eight that only align.
        tokens[r] = r % 3 == 1 || r / 8 == 5 ? -1 : static_cast<int32_t>(rng() % kTokens);
      }
      const DeviceArray<int32_t> device_tokens(tokens);
      const DeviceActivations to(rows, cols);
      ASSERT_EQ(LaunchGatherExpertRows({.x = x.view(),
                                        .cols = cols,
                                        .tables = {.tokens = device_tokens.data()},
                                        .max_rows = rows,
                                        .to = to.view()},
                                       stream()),
                cudaSuccess);
      std::vector<uint16_t> expected;
      for (int r = 0; r < rows; ++r) {
        if (tokens[r] < 0) {
          expected.insert(expected.end(), cols, 0xFFFF);
        } else {
          const auto from = halves.begin() + size_t{1} * tokens[r] * cols;
          expected.insert(expected.end(), from, from + cols);
        }
      }
      EXPECT_TRUE(SameBits(to.Read(), expected));
    }
  }
}

class CombineExpertsTest : public GpuTest {};

TEST_F(CombineExpertsTest, AddsInOrder) {
  struct Case {
    int count;
    int used;
    int hidden;
    int tokens;
    bool bias = false;
    int shared_splits = 0;
    bool shared_gated = false;
  };
  for (const Case& c :
       {Case{8, 2, 2048, 9}, Case{128, 8, 2048, 1}, Case{128, 8, 2048, 300},
        Case{32, 4, 2880, 17, true}, Case{60, 4, 2048, 9, false, 3, true},
        Case{128, 9, 104, 33, true, 1}, Case{17, 16, 8, 5, true, 8, true}, Case{2, 1, 8192, 2},
        Case{512, 10, 896, 20, false, 2, true}, Case{64, 32, 64, 3}}) {
    SCOPED_TRACE(::testing::Message() << c.used << " of " << c.count << ", " << c.tokens << " x "
                                      << c.hidden << ", " << c.shared_splits << " splits");
    const ExpertsSpec spec = {.count = c.count,
                              .used = c.used,
                              .ffn = 8,
                              .shared_ffn = c.shared_splits > 0 ? 8 : 0,
                              .shared_gated = c.shared_gated};
    constexpr float kScale = 1 / kSwiGluScale;
    std::mt19937 rng(c.hidden);
    const int rows = MaxExpertRows(spec, c.tokens);
    std::vector<int32_t> of_choices(rows);
    std::iota(of_choices.begin(), of_choices.end(), 0);
    std::ranges::shuffle(of_choices, rng);
    of_choices.resize(size_t{1} * c.tokens * c.used);
    std::vector<int32_t> chosen;
    std::vector<int32_t> experts(c.count);
    std::iota(experts.begin(), experts.end(), 0);
    for (int t = 0; t < c.tokens; ++t) {
      std::ranges::shuffle(experts, rng);
      std::sort(experts.begin(), experts.begin() + c.used);
      chosen.insert(chosen.end(), experts.begin(), experts.begin() + c.used);
    }
    // The third token pads the step.
    const int padding = 2;
    std::vector<float> weights = RandomFloats(chosen.size(), 6);
    for (int j = 0; padding < c.tokens && j < c.used; ++j) {
      const int choice = padding * c.used + j;
      chosen[choice] = of_choices[choice] = -1;
      weights[choice] = 0;
    }
    // Rows that no choice has are NaN.
    const std::vector<float> outputs = RandomFloats(chosen.size() * c.hidden, 7);
    std::vector<float> y(size_t{1} * rows * c.hidden, kNan);
    for (size_t i = 0; i < of_choices.size(); ++i) {
      if (of_choices[i] < 0) continue;
      std::copy_n(outputs.begin() + i * c.hidden, c.hidden,
                  y.begin() + size_t{1} * of_choices[i] * c.hidden);
    }
    const std::vector<float> bias = RandomFloats(size_t{1} * c.count * c.hidden, 8);
    const int shared_tokens = c.tokens + 5;
    const std::vector<float> shared =
        RandomFloats(size_t{1} * std::max(1, c.shared_splits) * shared_tokens * c.hidden, 9);
    const std::vector<float> shared_weights = RandomFloats(c.tokens, 10);

    const DeviceArray<int32_t> device_chosen(chosen);
    const DeviceArray<int32_t> device_rows(of_choices);
    const DeviceArray<float> device_weights(weights);
    const DeviceArray<float> device_shared_weights(shared_weights);
    const DeviceArray<float> device_y(y);
    const DeviceArray<float> device_bias(bias);
    const DeviceArray<float> device_shared(shared);
    // All, or all but the last.
    const int added = c.tokens % 2 == 0 ? c.used : std::max(c.used - 1, 1);
    const size_t values = size_t{1} * c.tokens * c.hidden;
    const DeviceArray<float> out(values + c.hidden);
    ASSERT_EQ(
        LaunchCombineExperts(
            {.spec = spec,
             .added = added,
             .tables = {.chosen = device_chosen.data(),
                        .weights = device_weights.data(),
                        .shared_weights = c.shared_gated ? device_shared_weights.data() : nullptr,
                        .rows = device_rows.data()},
             .y = device_y.data(),
             .bias = c.bias ? device_bias.data() : nullptr,
             .scale = kScale,
             .shared = c.shared_splits > 0 ? device_shared.data() : nullptr,
             .shared_splits = c.shared_splits,
             .shared_tokens = shared_tokens,
             .shared_scale = kScale / 2,
             .hidden = c.hidden,
             .tokens = c.tokens,
             .out = out.data()},
            stream()),
        cudaSuccess);
    std::vector<float> expected(values);
    for (int t = 0; t < c.tokens; ++t) {
      for (int i = 0; i < c.hidden; ++i) {
        float sum = 0;
        for (int j = 0; j < added; ++j) {
          const int choice = t * c.used + j;
          if (chosen[choice] < 0) continue;
          const float value =
              std::fma(kScale, y[size_t{1} * of_choices[choice] * c.hidden + i],
                       c.bias ? bias[size_t{1} * chosen[choice] * c.hidden + i] : 0.0f);
          sum = std::fma(weights[choice], value, sum);
        }
        if (c.shared_splits > 0) {
          const size_t stride = size_t{1} * shared_tokens * c.hidden;
          float product = shared[size_t{1} * t * c.hidden + i];
          for (int s = 1; s < c.shared_splits; ++s) {
            product += shared[s * stride + size_t{1} * t * c.hidden + i];
          }
          sum = std::fma(c.shared_gated ? shared_weights[t] : 1.0f, kScale / 2 * product, sum);
        }
        expected[size_t{1} * t * c.hidden + i] = sum;
      }
    }
    std::vector<float> actual = out.Read();
    for (size_t i = values; i < actual.size(); ++i) ASSERT_TRUE(IsPoison(actual[i])) << i;
    actual.resize(values);
    EXPECT_TRUE(SameBits(actual, expected));
  }
}

// --- All of them in a CUDA graph. ----------------------------------------------------------------

class ExpertGraphTest : public GpuTest {};

// Each launch waits for those before it, in a graph as well.
TEST_F(ExpertGraphTest, IsTheSameAsLaunches) {
  const ExpertsSpec spec = {
      .count = 128, .used = 8, .ffn = 8, .score = RouterScore::kSoftmax, .normalise = true};
  constexpr int kHidden = 2048;
  for (const int tokens : {1, 8, 64, 300}) {
    SCOPED_TRACE(tokens);
    const int tile_rows = ExpertTileRows(spec, tokens);
    const int max_rows = MaxExpertRows(spec, tokens);
    const size_t choices = size_t{1} * tokens * spec.used;
    const DeviceArray<float> residual(RandomFloats(size_t{1} * tokens * kHidden, 1));
    const DeviceArray<float> norm_weight(RandomFloats(kHidden, 2));
    const DeviceArray<float> weights(RandomFloats(size_t{1} * spec.count * kHidden, 3));
    const DeviceArray<float> y(RandomFloats(size_t{1} * max_rows * kHidden, 4));
    const auto run = [&](bool in_graph) {
      const DeviceArray<float> x(size_t{1} * tokens * kHidden);
      const DeviceActivations normed(tokens, kHidden);
      const DeviceArray<float> logits(size_t{1} * tokens * spec.count);
      const DeviceArray<int32_t> chosen(choices);
      const DeviceArray<float> chosen_weights(choices);
      const DeviceArray<int32_t> rows(choices);
      const DeviceArray<int32_t> row_tokens(max_rows);
      const DeviceArray<ExpertTile> tiles(MaxExpertTiles(spec, tokens, tile_rows));
      const DeviceActivations inputs(max_rows, kHidden);
      const DeviceArray<float> out(size_t{1} * tokens * kHidden);
      DeviceArray<ExpertLoad> load(1);
      load.Fill(0);
      const ExpertTables tables = {.chosen = chosen.data(),
                                   .weights = chosen_weights.data(),
                                   .rows = rows.data(),
                                   .tokens = row_tokens.data(),
                                   .tiles = tiles.data()};
      const auto launch = [&] {
        EXPECT_EQ(LaunchNorm({.residual = residual.data(),
                              .weight = norm_weight.data(),
                              .eps = 1e-6f,
                              .hidden = kHidden,
                              .tokens = tokens,
                              .out = normed.view(),
                              .out_f32 = x.data()},
                             stream()),
                  cudaSuccess);
        EXPECT_EQ(LaunchRouter({.x = x.data(),
                                .weights = weights.data(),
                                .count = spec.count,
                                .outputs = spec.count,
                                .hidden = kHidden,
                                .tokens = tokens,
                                .logits = logits.data()},
                               stream()),
                  cudaSuccess);
        EXPECT_EQ(LaunchChooseExperts({.spec = spec,
                                       .logits = logits.data(),
                                       .tokens = tokens,
                                       .tile_rows = tile_rows,
                                       .tables = tables,
                                       .load = load.data()},
                                      stream()),
                  cudaSuccess);
        EXPECT_EQ(LaunchGatherExpertRows({.x = normed.view(),
                                          .cols = kHidden,
                                          .tables = tables,
                                          .max_rows = max_rows,
                                          .to = inputs.view()},
                                         stream()),
                  cudaSuccess);
        EXPECT_EQ(LaunchCombineExperts({.spec = spec,
                                        .added = spec.used,
                                        .tables = tables,
                                        .y = y.data(),
                                        .hidden = kHidden,
                                        .tokens = tokens,
                                        .out = out.data()},
                                       stream()),
                  cudaSuccess);
      };
      constexpr int kTimes = 20;
      if (in_graph) {
        EXPECT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
        for (int i = 0; i < kTimes; ++i) launch();
        cudaGraph_t captured = nullptr;
        EXPECT_EQ(cudaStreamEndCapture(stream(), &captured), cudaSuccess);
        cudaGraphExec_t executable = nullptr;
        EXPECT_EQ(cudaGraphInstantiate(&executable, captured, 0), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(captured), cudaSuccess);
        const Graph graph(executable);
        EXPECT_EQ(cudaGraphLaunch(graph.get(), stream()), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
      } else {
        for (int i = 0; i < kTimes; ++i) {
          launch();
          EXPECT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
        }
      }
      EXPECT_EQ(load.Read()[0].tokens, kTimes * choices);
      return std::pair(inputs.Read(), out.Read());
    };
    const auto apart = run(false);
    const auto in_graph = run(true);
    EXPECT_TRUE(SameBits(in_graph.first, apart.first));
    EXPECT_TRUE(SameBits(in_graph.second, apart.second));
  }
}

}  // namespace
}  // namespace orcd::cuda
