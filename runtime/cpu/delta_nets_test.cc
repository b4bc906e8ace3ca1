#include "runtime/cpu/delta_nets.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/matrix_for_test.h"
#include "testing/same_bits.h"

namespace orcd::cpu {
namespace {

constexpr int kHidden = 32;
constexpr int kMaxRows = 40;
constexpr int kMaxSeqs = 4;

// A delta net of random weights in the second of two layers, behind one with attention.
class TestNet {
 public:
  explicit TestNet(const DeltaNetSpec& delta) {
    spec_.hidden = kHidden;
    spec_.norm_eps = 1e-6f;
    spec_.layers.resize(2);
    spec_.layers[1].delta = delta;
    weights_.layers.resize(2);
    DeltaNetWeights& w = weights_.layers[1].delta;
    w.qkv = NewMatrix(delta.channels(), kHidden);
    w.gate = NewMatrix(delta.value_size(), kHidden);
    w.beta = NewMatrix(delta.value_heads, kHidden);
    w.alpha = NewMatrix(delta.value_heads, kHidden);
    w.conv = NewMatrix(delta.channels(), delta.conv);
    // Some states fade at once, and some last.
    w.a = NewVector(delta.value_heads, [](float x) { return -std::exp(3 * x); });
    w.dt_bias = NewVector(delta.value_heads, [](float x) { return 2 * x; });
    w.norm = NewVector(delta.head_dim, [](float x) { return 1 + x / 2; });
    w.output = NewMatrix(kHidden, delta.value_size());
  }

  ModelSpec& spec() { return spec_; }
  const DeltaNetSpec& delta() const { return spec_.layers[1].delta; }
  const ModelWeights& model_weights() const { return weights_; }
  DeltaNetWeights& weights() { return weights_.layers[1].delta; }

  // The rows of qkv and gate in the order of ssm_in, and those of beta and alpha in that of ssm_ba.
  void Fuse() {
    const DeltaNetSpec& d = delta();
    DeltaNetWeights& w = weights();
    const int group = d.value_heads / d.key_heads;
    std::vector<const std::byte*> inputs;
    std::vector<const std::byte*> factors;
    const auto take = [&](const Matrix& from, int64_t first, int64_t count, auto& to) {
      for (int64_t r = first; r < first + count; ++r) to.push_back(from.row(r));
    };
    for (int head = 0; head < d.key_heads; ++head) {
      const int64_t keys = int64_t{head} * d.head_dim;
      const int64_t values = keys * group;
      take(w.qkv, keys, d.head_dim, inputs);
      take(w.qkv, d.key_size() + keys, d.head_dim, inputs);
      take(w.qkv, 2 * d.key_size() + values, int64_t{d.head_dim} * group, inputs);
      take(w.gate, values, int64_t{d.head_dim} * group, inputs);
      take(w.beta, int64_t{head} * group, group, factors);
      take(w.alpha, int64_t{head} * group, group, factors);
    }
    w.qkv_gate = Copied(inputs);
    w.beta_alpha = Copied(factors);
    w.qkv = w.gate = w.beta = w.alpha = {};
  }

 private:
  Matrix NewMatrix(int64_t rows, int64_t cols) {
    const float scale = 1 / std::sqrt(static_cast<float>(cols));
    floats_.push_back(RandomFloats(rows * cols, seed_++, scale));
    return AsMatrix(rows, cols);
  }
  Matrix AsMatrix(int64_t rows, int64_t cols) const {
    return {TensorType::kF32, rows, cols, reinterpret_cast<const std::byte*>(floats_.back().data()),
            cols * static_cast<int64_t>(sizeof(float))};
  }
  template <typename Change>
  Vector NewVector(int64_t size, Change change) {
    floats_.push_back(RandomFloats(size, seed_++));
    for (float& value : floats_.back()) value = change(value);
    return floats_.back();
  }
  Matrix Copied(const std::vector<const std::byte*>& rows) {
    std::vector<float> all;
    for (const std::byte* row : rows) {
      const auto* const values = reinterpret_cast<const float*>(row);
      all.insert(all.end(), values, values + kHidden);
    }
    floats_.push_back(std::move(all));
    return AsMatrix(static_cast<int64_t>(rows.size()), kHidden);
  }

  uint32_t seed_ = 1;
  ModelSpec spec_;
  ModelWeights weights_;
  // Stays where it is.
  std::deque<std::vector<float>> floats_;
};

// The net with its buffers, which hold NaNs at first, as do the states.
class Runner {
 public:
  Runner(TestNet& net, const KernelTable& kernels, int threads = 2)
      : pool_(threads),
        matmul_(kernels, pool_),
        floats_(net.spec().state_floats()),
        memory_(5, std::vector<float>(100'000, kNan)),
        small_(2, std::vector<float>(10'000, kNan)),
        states_(kMaxSeqs * floats_, kNan),
        nets_(kernels, pool_, matmul_, net.spec(), net.model_weights(), Buffers(), kMaxRows,
              kMaxSeqs) {}

  std::span<float> state(int i) { return std::span(states_).subspan(i * floats_, floats_); }

  // Runs rows [first, first + rows) of `x` as a sequence, the last `drafts` of them as guesses.
  std::vector<float> Run(std::span<const float> x, int64_t first, int64_t rows, int64_t drafts = 0,
                         int slot = 0) {
    const DeltaRows part = {
        .first_row = 0, .rows = rows, .drafts = drafts, .begins = first == 0, .state = state(slot)};
    return RunStep({&part, 1}, x.subspan(first * kHidden, rows * kHidden));
  }
  std::vector<float> RunStep(std::span<const DeltaRows> parts, std::span<const float> x) {
    const auto rows = static_cast<int64_t>(x.size()) / kHidden;
    nets_.Plan(parts);
    std::vector<float> out(x.size(), kNan);
    nets_.Run(1, x.data(), rows, out.data(), nullptr);
    return out;
  }
  DeltaNets& nets() { return nets_; }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

  DeltaBuffers Buffers() {
    return {.qkv = memory_[0].data(),
            .convolved = memory_[1].data(),
            .gate = memory_[2].data(),
            .out = memory_[3].data(),
            .raw_factors = small_[0].data(),
            .factors = small_[1].data(),
            .drafts = memory_[4].data()};
  }

  ThreadPool pool_;
  MatMul matmul_;
  const int64_t floats_;
  std::vector<std::vector<float>> memory_;
  std::vector<std::vector<float>> small_;
  std::vector<float> states_;
  DeltaNets nets_;
};

// The matrix times x.
std::vector<double> InDoubles(const Matrix& matrix, std::span<const double> x) {
  std::vector<double> y(matrix.rows);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    const auto* const row = reinterpret_cast<const float*>(matrix.row(r));
    for (int64_t c = 0; c < matrix.cols; ++c) y[r] += double{row[c]} * x[c];
  }
  return y;
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

// The formulas of DeltaNetSpec in F64, for a sequence from its beginning. `state` gets the matrices
// after the last token.
std::vector<double> Expected(TestNet& net, std::span<const float> x, std::vector<double>& state) {
  const DeltaNetSpec& d = net.delta();
  const DeltaNetWeights& w = net.weights();
  const double eps = net.spec().norm_eps;
  const int n = d.head_dim;
  const auto tokens = static_cast<int>(x.size() / kHidden);
  std::vector<std::vector<double>> u;
  state.assign(d.matrix_floats(), 0);
  std::vector<double> all;
  for (int t = 0; t < tokens; ++t) {
    const std::vector<double> y(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
    u.push_back(InDoubles(w.qkv, y));
    std::vector<double> c(d.channels());
    for (int channel = 0; channel < d.channels(); ++channel) {
      const auto* const taps = reinterpret_cast<const float*>(w.conv.row(channel));
      double sum = 0;
      for (int j = 0; j < d.conv; ++j) {
        const int from = t - (d.conv - 1) + j;
        if (from >= 0) sum += double{taps[j]} * u[from][channel];
      }
      c[channel] = Silu(sum);
    }
    const auto unit = [&](int first, double scale) {
      double sum = 0;
      for (int i = 0; i < n; ++i) sum += c[first + i] * c[first + i];
      std::vector<double> result(n);
      for (int i = 0; i < n; ++i) result[i] = c[first + i] * scale / std::sqrt(sum + eps);
      return result;
    };
    const std::vector<double> z = InDoubles(w.gate, y);
    const std::vector<double> b = InDoubles(w.beta, y);
    const std::vector<double> a = InDoubles(w.alpha, y);
    std::vector<double> gated(d.value_size());
    for (int head = 0; head < d.value_heads; ++head) {
      const int key_head = d.key_head_of(head);
      const auto q = unit(key_head * n, 1 / std::sqrt(static_cast<double>(n)));
      const auto k = unit(d.key_size() + key_head * n, 1);
      const double* const v = c.data() + 2 * d.key_size() + head * n;
      const double decay =
          std::exp(double{w.a[head]} * std::log1p(std::exp(a[head] + double{w.dt_bias[head]})));
      const double beta = 1 / (1 + std::exp(-b[head]));
      double* const s = state.data() + int64_t{head} * n * n;
      std::vector<double> o(n);
      for (int i = 0; i < n * n; ++i) s[i] *= decay;
      for (int col = 0; col < n; ++col) {
        double seen = 0;
        for (int row = 0; row < n; ++row) seen += s[row * n + col] * k[row];
        const double change = beta * (v[col] - seen);
        for (int row = 0; row < n; ++row) {
          s[row * n + col] += k[row] * change;
          o[col] += s[row * n + col] * q[row];
        }
      }
      double squares = 0;
      for (const double value : o) squares += value * value;
      const double scale = 1 / std::sqrt(squares / n + eps);
      for (int i = 0; i < n; ++i) {
        gated[head * n + i] = o[i] * scale * double{w.norm[i]} * Silu(z[head * n + i]);
      }
    }
    const std::vector<double> out = InDoubles(w.output, gated);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

void ExpectClose(std::span<const float> actual, std::span<const double> expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_LE(error, 1e-11 * norm) << what << ", NMSE " << error / norm;
}

const std::vector<DeltaNetSpec>& Specs() {
  static const std::vector<DeltaNetSpec> specs = {
      {.key_heads = 2, .value_heads = 4, .head_dim = 32, .conv = 4},
      {.key_heads = 2,
       .value_heads = 6,
       .head_dim = 16,
       .conv = 4,
       .pairing = HeadPairing::kDivision},
      {.key_heads = 1, .value_heads = 3, .head_dim = 48, .conv = 2},
      {.key_heads = 1, .value_heads = 1, .head_dim = 128, .conv = 1}};
  return specs;
}

class DeltaNetsTest : public ::testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(All, DeltaNetsTest,
                         ::testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(DeltaNetsTest, AgreesWithDoublePrecision) {
  for (const DeltaNetSpec& delta : Specs()) {
    SCOPED_TRACE(delta.head_dim);
    TestNet net(delta);
    const std::vector<float> x = RandomFloats(30 * kHidden, 99);
    std::vector<double> state;
    const std::vector<double> expected = Expected(net, x, state);
    Runner runner(net, *GetParam());
    ASSERT_NO_FATAL_FAILURE(ExpectClose(runner.Run(x, 0, 30), expected, "output"));
    ASSERT_NO_FATAL_FAILURE(
        ExpectClose(runner.state(0).subspan(delta.conv_floats()), state, "state"));
  }
}

TEST_P(DeltaNetsTest, PiecesAreTheWhole) {
  for (const DeltaNetSpec& delta : Specs()) {
    TestNet net(delta);
    const std::vector<float> x = RandomFloats(30 * kHidden, 98);
    Runner whole(net, *GetParam());
    const std::vector<float> expected = whole.Run(x, 0, 30);
    for (const int piece : {1, 2, 3, 7}) {
      SCOPED_TRACE(piece);
      Runner runner(net, *GetParam(), piece);
      std::vector<float> actual;
      for (int first = 0; first < 30; first += piece) {
        const auto part = runner.Run(x, first, std::min(piece, 30 - first));
        actual.insert(actual.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(SameBits(actual, expected));
      EXPECT_TRUE(SameBits(runner.state(0), whole.state(0)));
    }
  }
}

TEST_P(DeltaNetsTest, SequencesShareAStep) {
  TestNet net(Specs()[0]);
  const std::vector<float> x = RandomFloats(kMaxRows * kHidden, 97);
  Runner alone(net, *GetParam());
  Runner together(net, *GetParam());
  const std::span<const float> rows = x;
  const auto a = alone.Run(rows, 0, 9, 0, 0);
  const auto b = alone.Run(rows.subspan(9 * kHidden), 0, 1, 0, 1);
  const auto c = alone.Run(rows.subspan(10 * kHidden), 0, 20, 4, 2);
  const std::vector<DeltaRows> parts = {
      {.first_row = 0, .rows = 9, .begins = true, .state = together.state(0)},
      {.first_row = 9, .rows = 1, .begins = true, .state = together.state(1)},
      {.first_row = 10, .rows = 20, .drafts = 4, .begins = true, .state = together.state(2)}};
  const auto all = together.RunStep(parts, rows.first(30 * kHidden));
  const std::span<const float> result = all;
  EXPECT_TRUE(SameBits(result.first(9 * kHidden), a));
  EXPECT_TRUE(SameBits(result.subspan(9 * kHidden, kHidden), b));
  EXPECT_TRUE(SameBits(result.subspan(10 * kHidden), c));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(alone.state(i), together.state(i))) << i;
}

// The state after the right ones is the state that they leave as tokens, and wrong ones are not in
// it.
TEST_P(DeltaNetsTest, DraftsLeaveAStateIfTheyAreRight) {
  for (const DeltaNetSpec& delta : Specs()) {
    TestNet net(delta);
    const std::vector<float> x = RandomFloats(30 * kHidden, 96);
    for (const int tokens : {1, 2, 8}) {
      for (int right = 0; right <= 6; ++right) {
        SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << right << " drafts");
        Runner expected(net, *GetParam());
        expected.Run(x, 0, 10);
        const auto plain = expected.Run(x, 10, tokens + right);
        Runner runner(net, *GetParam());
        runner.Run(x, 0, 10);
        const auto drafted = runner.Run(x, 10, tokens + 6, 6);
        EXPECT_TRUE(SameBits(std::span(drafted).first(plain.size()), plain));
        runner.nets().Advance(0, right);
        EXPECT_TRUE(SameBits(runner.state(0), expected.state(0)));
      }
    }
  }
}

// With the bits that the state has where a part ends there, and with no trace in the part itself.
TEST_P(DeltaNetsTest, StatesAreSavedAnywhereInAPart) {
  for (const DeltaNetSpec& delta : Specs()) {
    TestNet net(delta);
    const std::vector<float> x = RandomFloats(30 * kHidden, 94);
    for (const int begin : {0, 1, 2, 10}) {
      const int count = 24 - begin;
      for (const auto& [first, second] : {std::pair(1, 2), {3, 11}, {5, count - 1}, {1, count}}) {
        for (const int drafts : {0, 4}) {
          SCOPED_TRACE(::testing::Message() << "from " << begin << " after " << first << " and "
                                            << second << ", " << drafts << " drafts");
          Runner runner(net, *GetParam());
          if (begin > 0) runner.Run(x, 0, begin);
          const SavedState saves[] = {{first, runner.state(1)}, {second, runner.state(2)}};
          const DeltaRows part = {.first_row = 0,
                                  .rows = count + drafts,
                                  .drafts = drafts,
                                  .begins = begin == 0,
                                  .state = runner.state(0),
                                  .saves = saves};
          const auto rows = std::span<const float>(x).subspan(begin * kHidden);
          const auto out = runner.RunStep({&part, 1}, rows.first((count + drafts) * kHidden));
          Runner expected(net, *GetParam());
          if (begin > 0) expected.Run(x, 0, begin);
          EXPECT_TRUE(SameBits(out, expected.Run(x, begin, count + drafts, drafts)));
          EXPECT_TRUE(SameBits(runner.state(0), expected.state(0)));
          for (const SavedState& save : saves) {
            Runner ends(net, *GetParam());
            ends.Run(x, 0, begin + save.tokens);
            EXPECT_TRUE(SameBits(save.state, ends.state(0))) << save.tokens;
          }
        }
      }
    }
  }
}

TEST_P(DeltaNetsTest, FusedTensorsAreAsGoodAsSplitOnes) {
  TestNet split(Specs()[1]);
  TestNet fused(Specs()[1]);
  fused.Fuse();
  const std::vector<float> x = RandomFloats(12 * kHidden, 95);
  Runner a(split, *GetParam());
  Runner b(fused, *GetParam());
  EXPECT_TRUE(SameBits(a.Run(x, 0, 12), b.Run(x, 0, 12)));
  EXPECT_TRUE(SameBits(a.state(0), b.state(0)));
}

TEST_P(DeltaNetsTest, SaysWhichRowIsNotFinite) {
  TestNet net(Specs()[0]);
  Runner runner(net, *GetParam());
  std::vector<float> x = RandomFloats(10 * kHidden, 94);
  runner.Run(x, 0, 10);
  for (int row = 0; row < 10; ++row) EXPECT_TRUE(runner.nets().IsFinite(1, row)) << row;
  x[4 * kHidden + 3] = std::numeric_limits<float>::infinity();
  runner.Run(x, 0, 10);
  // Later rows follow from it.
  for (int row = 0; row < 10; ++row) EXPECT_EQ(runner.nets().IsFinite(1, row), row < 4) << row;
  const float most = std::numeric_limits<float>::max();
  std::ranges::fill(runner.state(0).subspan(net.delta().conv_floats()), most);
  runner.Run(x, 5, 1);
  EXPECT_FALSE(runner.nets().IsFinite(1, 0)) << "the state overflows";
}

}  // namespace
}  // namespace orcd::cpu
