#include "runtime/cpu/ffn.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cpu/matrix_for_test.h"
#include "testing/same_bits.h"

namespace orcd::cpu {
namespace {

using ::testing::ElementsAre;

constexpr int kMaxRows = 64;
constexpr int kHidden = 256;

// As many experts as Qwen3 30B-A3B has, but narrow ones.
ExpertsSpec ManyExperts() {
  return {.count = 128, .used = 8, .ffn = 32, .score = RouterScore::kSoftmax, .normalise = true};
}

ExpertsSpec FewExperts() {
  return {.count = 4, .used = 2, .ffn = 64, .shared_ffn = 32, .shared_gated = true};
}

// A layer of random weights, whose experts are of type Q8_0.
class TestLayer {
 public:
  explicit TestLayer(const ExpertsSpec& experts, Activation activation = Activation::kSilu) {
    spec_.hidden = kHidden;
    spec_.layers.push_back({.experts = experts, .activation = activation});
    ExpertWeights& w = weights_.layers.emplace_back().experts;
    w.router = NewMatrix(TensorType::kF32, experts.count, kHidden);
    for (int i = 0; i < experts.count; ++i) {
      w.gate.push_back(NewMatrix(TensorType::kQ8_0, experts.ffn, kHidden));
      w.up.push_back(NewMatrix(TensorType::kQ8_0, experts.ffn, kHidden));
      w.down.push_back(NewMatrix(TensorType::kQ8_0, kHidden, experts.ffn));
    }
    w.gate_bias = NewVector(int64_t{experts.count} * experts.ffn);
    w.up_bias = NewVector(int64_t{experts.count} * experts.ffn);
    w.down_bias = NewVector(int64_t{experts.count} * kHidden);
    if (experts.shared_ffn == 0) return;
    w.shared_gate = NewMatrix(TensorType::kQ8_0, experts.shared_ffn, kHidden);
    w.shared_up = NewMatrix(TensorType::kQ8_0, experts.shared_ffn, kHidden);
    w.shared_down = NewMatrix(TensorType::kQ8_0, kHidden, experts.shared_ffn);
    w.shared_router = NewVector(kHidden);
  }

  const ModelSpec& spec() const { return spec_; }
  const ExpertsSpec& experts() const { return spec_.layers[0].experts; }
  const ModelWeights& weights() const { return weights_; }
  ExpertWeights& expert_weights() { return weights_.layers[0].experts; }

  std::vector<float> Dequantized(const Matrix& matrix) const {
    for (const TestMatrix& own : matrices_) {
      if (own.matrix().data == matrix.data) return own.Dequantized();
    }
    return {};
  }

 private:
  Matrix NewMatrix(TensorType type, int64_t rows, int64_t cols) {
    // Factors of blocks of Q8_0 multiply numbers of up to 127.
    const float scale = type == TensorType::kF32 ? 0.2f : 0.002f;
    return matrices_.emplace_back(type, rows, cols, ++seed_, scale).matrix();
  }
  Vector NewVector(int64_t size) {
    return vectors_.emplace_back(RandomFloats(size, ++seed_, 0.1f));
  }

  uint32_t seed_ = 0;
  std::deque<TestMatrix> matrices_;
  std::deque<std::vector<float>> vectors_;
  ModelSpec spec_;
  ModelWeights weights_;
};

// Scratch memory for a layer, which holds NaNs.
class FfnMemory {
 public:
  explicit FfnMemory(const TestLayer& layer) {
    const FfnSizes sizes(layer.spec());
    buffers_ = {.gate = Take(sizes.gate),
                .up = Take(sizes.gate),
                .router = Take(sizes.router),
                .expert_rows = Take(sizes.expert_rows)};
  }
  const FfnBuffers& buffers() const { return buffers_; }

 private:
  float* Take(int64_t floats) {
    return memory_.emplace_back(kMaxRows * floats, std::numeric_limits<float>::quiet_NaN()).data();
  }

  std::deque<std::vector<float>> memory_;
  FfnBuffers buffers_;
};

// Runs the layer and returns its output.
std::vector<float> RunLayer(const TestLayer& layer, std::span<const float> x,
                            const KernelTable& kernels = BestKernels(), int threads = 2,
                            ActivationTap* tap = nullptr) {
  FfnMemory memory(layer);
  std::vector<float> out(x.size(), std::numeric_limits<float>::quiet_NaN());
  ThreadPool pool(threads);
  MatMul matmul(kernels, pool);
  Ffn ffn(kernels, pool, matmul, layer.spec(), layer.weights(), memory.buffers(), kMaxRows);
  ffn.Run(0, x.data(), static_cast<int64_t>(x.size()) / kHidden, out.data(), tap);
  return out;
}

// Remembers what was shown, and replaces the router's logits if it has others.
struct FfnTap : ActivationTap {
  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t,
                    int64_t) override {
    EXPECT_EQ(layer, 0);
    points.emplace_back(NameOf(point));
    shown[point].assign(values.begin(), values.end());
  }
  bool Replace(TapPoint point, int, std::span<float> values, int64_t rows, int64_t cols) override {
    EXPECT_EQ(point, TapPoint::kRouter);
    EXPECT_EQ(static_cast<int64_t>(values.size()), rows * cols);
    EXPECT_TRUE(points.empty()) << "asked too late";
    if (logits.empty()) return false;
    std::ranges::copy(logits, values.begin());
    return true;
  }

  std::vector<float> logits;
  std::vector<std::string> points;
  std::map<TapPoint, std::vector<float>> shown;
};

class FfnTest : public ::testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(All, FfnTest,
                         ::testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(FfnTest, ARowIsTheSameWhateverIsBesideIt) {
  for (const ExpertsSpec& experts : {ManyExperts(), FewExperts()}) {
    const TestLayer layer(experts);
    constexpr int kRows = 200;
    const std::vector<float> x = RandomFloats(kRows * kHidden, 5);
    std::vector<float> alone;
    for (int row = 0; row < kRows; ++row) {
      const auto one =
          RunLayer(layer, std::span(x).subspan(row * kHidden, kHidden), *GetParam(), 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    ASSERT_TRUE(std::ranges::all_of(alone, [](float value) { return std::isfinite(value); }));
    std::mt19937 random(7);
    for (int i = 0; i < 20; ++i) {
      std::vector<float> some;
      std::vector<float> expected;
      const int count = 1 + static_cast<int>(random() % kMaxRows);
      for (int j = 0; j < count; ++j) {
        // A row may come twice.
        const size_t at = random() % kRows * kHidden;
        some.insert(some.end(), x.begin() + at, x.begin() + at + kHidden);
        expected.insert(expected.end(), alone.begin() + at, alone.begin() + at + kHidden);
      }
      ASSERT_TRUE(SameBits(RunLayer(layer, some, *GetParam(), 1 + i % 3), expected))
          << count << " rows";
    }
  }
}

TEST(ExpertsTest, TheSumIsThatOfTheChosenAndOfTheShared) {
  for (const Activation activation : {Activation::kSilu, Activation::kClampedSwiglu}) {
    TestLayer layer(FewExperts(), activation);
    const ExpertWeights& w = layer.expert_weights();
    const std::vector<float> x = RandomFloats(2 * kHidden, 5);
    FfnTap tap;
    // The first row takes experts 1 and 3, the second 0 and 1.
    tap.logits = {0, 3, 1, 2, 5, 6, 1, 0};
    const std::vector<float> out = RunLayer(layer, x, BestKernels(), 2, &tap);
    EXPECT_THAT(tap.points, ElementsAre("router", "expert_weights", "experts", "ffn_gate", "ffn_up",
                                        "ffn_act"));
    EXPECT_EQ(tap.shown[TapPoint::kRouter], tap.logits);

    const auto product = [&](const Matrix& matrix, Vector bias, const std::vector<double>& in) {
      const std::vector<float> values = layer.Dequantized(matrix);
      std::vector<double> y;
      for (int64_t r = 0; r < matrix.rows; ++r) {
        double sum = bias.empty() ? 0.0 : double{bias[r]};
        for (int64_t c = 0; c < matrix.cols; ++c)
          sum += double{values[r * matrix.cols + c]} * in[c];
        y.push_back(sum);
      }
      return y;
    };
    const auto gated = [&](std::vector<double> gate, const std::vector<double>& up) {
      for (size_t i = 0; i < gate.size(); ++i) {
        const bool clamped = activation == Activation::kClampedSwiglu;
        const double g = clamped ? std::min(gate[i], 7.0) : gate[i];
        const double u = clamped ? std::clamp(up[i], -7.0, 7.0) + 1 : up[i];
        gate[i] = g / (1 + std::exp(clamped ? -1.702 * g : -g)) * u;
      }
      return gate;
    };
    constexpr int kWidth = 64;
    const int chosen[2][2] = {{1, 3}, {0, 1}};
    for (int row = 0; row < 2; ++row) {
      const std::vector<double> in(x.begin() + row * kHidden, x.begin() + (row + 1) * kHidden);
      double sum = 0;
      for (int e = 0; e < 4; ++e) sum += std::exp(double{tap.logits[row * 4 + e]});
      std::vector<double> expected(kHidden, 0.0);
      std::vector<float> weights(4, 0.0f);
      for (const int e : chosen[row]) {
        const double weight = std::exp(double{tap.logits[row * 4 + e]}) / sum;
        weights[e] = static_cast<float>(weight);
        const auto y =
            product(w.down[e], w.down_bias.subspan(e * kHidden, kHidden),
                    gated(product(w.gate[e], w.gate_bias.subspan(e * kWidth, kWidth), in),
                          product(w.up[e], w.up_bias.subspan(e * kWidth, kWidth), in)));
        for (int i = 0; i < kHidden; ++i) expected[i] += weight * y[i];
      }
      for (int e = 0; e < 4; ++e) {
        EXPECT_FLOAT_EQ(tap.shown[TapPoint::kExpertWeights][row * 4 + e], weights[e]);
      }
      for (int i = 0; i < kHidden; ++i) {
        ASSERT_NEAR(tap.shown[TapPoint::kExperts][row * kHidden + i], expected[i], 1e-5) << i;
      }
      double dot = 0;
      for (int i = 0; i < kHidden; ++i) dot += in[i] * double{w.shared_router[i]};
      const auto shared = product(
          w.shared_down, {}, gated(product(w.shared_gate, {}, in), product(w.shared_up, {}, in)));
      for (int i = 0; i < kHidden; ++i) {
        ASSERT_NEAR(out[row * kHidden + i], expected[i] + shared[i] / (1 + std::exp(-dot)), 1e-5)
            << i;
      }
    }
  }
}

TEST(ExpertsTest, ATapThatReplacesNothingChangesNothing) {
  const TestLayer layer(FewExperts());
  const std::vector<float> x = RandomFloats(5 * kHidden, 5);
  FfnTap tap;
  EXPECT_TRUE(SameBits(RunLayer(layer, x, BestKernels(), 2, &tap), RunLayer(layer, x)));
}

// A NaN in an expert's last matrix shows in the rows that chose the expert, and nowhere else.
TEST(ExpertsTest, ABrokenExpertShowsInTheRowsThatChoseIt) {
  TestLayer layer(ManyExperts());
  constexpr int kBroken = 77;
  std::vector<float> down(kHidden * 32, 0.0f);
  down[300] = NAN;
  layer.expert_weights().down[kBroken] = {TensorType::kF32, kHidden, 32,
                                          reinterpret_cast<const std::byte*>(down.data()), 32 * 4};
  const std::vector<float> x = RandomFloats(kMaxRows * kHidden, 5);
  FfnTap tap;
  const std::vector<float> out = RunLayer(layer, x, BestKernels(), 2, &tap);
  int hit = 0;
  for (int row = 0; row < kMaxRows; ++row) {
    const bool chosen = tap.shown[TapPoint::kExpertWeights][row * 128 + kBroken] != 0;
    const auto values = std::span(out).subspan(row * kHidden, kHidden);
    EXPECT_EQ(std::ranges::any_of(values, [](float v) { return std::isnan(v); }), chosen) << row;
    hit += chosen ? 1 : 0;
  }
  EXPECT_GT(hit, 0);
  EXPECT_LT(hit, kMaxRows);
}

// A row of FewExperts takes two of four.
TEST(ExpertsTest, TheLoadIsThatOfTheChosenExperts) {
  const TestLayer layer(FewExperts());
  FfnMemory memory(layer);
  ThreadPool pool(2);
  MatMul matmul(BestKernels(), pool);
  Ffn ffn(BestKernels(), pool, matmul, layer.spec(), layer.weights(), memory.buffers(), kMaxRows);
  const std::vector<float> x = RandomFloats(3 * kHidden, 5);
  std::vector<float> out(x.size());
  FfnTap tap;
  // Experts 0 and 1, 0 and 2, 0 and 1.
  tap.logits = {2, 1, 0, 0, 2, 0, 1, 0, 2, 1, 0, 0};
  ffn.Run(0, x.data(), 3, out.data(), &tap);
  tap.points.clear();
  ffn.Run(0, x.data(), 3, out.data(), &tap);
  const ExpertLoad load = ffn.TakeExpertLoad();
  EXPECT_EQ(load.tokens, 12u);
  EXPECT_THAT(std::span(load.experts).first(4), ElementsAre(2, 2, 2, 0));
  EXPECT_EQ(ffn.TakeExpertLoad().tokens, 0u);
}

// Weights that were dequantised, by kernels that count.
std::atomic<int64_t> weights_read = 0;

void CountingDequantize(TensorType type, const std::byte* src, int64_t count, float* dst) {
  weights_read += count;
  BestKernels().dequantize(type, src, count, dst);
}

float CountingDot(TensorType type, const std::byte* weights, const float* x, int64_t cols) {
  weights_read += cols;
  return BestKernels().dot(type, weights, x, cols);
}

TEST(ExpertsTest, AStepReadsTheWeightsOfEachChosenExpertOnce) {
  KernelTable counting = BestKernels();
  counting.dequantize = CountingDequantize;
  counting.dot = CountingDot;
  const TestLayer layer(ManyExperts());
  for (const int rows : {1, 3, kMaxRows}) {
    const std::vector<float> x = RandomFloats(rows * kHidden, 5);
    FfnTap tap;
    weights_read = 0;
    RunLayer(layer, x, counting, 2, &tap);
    std::set<size_t> chosen;
    const std::vector<float>& weights = tap.shown[TapPoint::kExpertWeights];
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] != 0) chosen.insert(i % 128);
    }
    EXPECT_GE(chosen.size(), 8u);
    EXPECT_EQ(weights_read.load(),
              128 * kHidden + static_cast<int64_t>(chosen.size()) * 3 * kHidden * 32)
        << rows << " rows";
  }
}

}  // namespace
}  // namespace orcd::cpu
