// Tests of the kernels of gated delta nets against the formulas in F64, and of their bits: a
// token's results and the state behind it are the same in a step of one token a sequence, in
// prompts of any parts, as drafts, and when drafts are replayed.
#include "cuda/kernels/common/delta_net.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 1e-6f;
constexpr int kLayers = 3;
constexpr int kLayer = 1;
constexpr int kSlots = 5;
// Drafts have slots behind those of the states.
constexpr int kFirstDraftSlot = 8;
constexpr int kAllSlots = 32;
constexpr int kDrafts = 16;

DeltaNetSpec Spec(int key_heads, int value_heads, int head_dim, int conv, HeadPairing pairing) {
  return {.key_heads = key_heads,
          .value_heads = value_heads,
          .head_dim = head_dim,
          .conv = conv,
          .pairing = pairing};
}

struct Net {
  DeltaNetSpec spec;
  int splits = 1;

  // Rows of the product: those that are read, and more.
  int read_rows() const { return spec.channels() + spec.value_size() + 2 * spec.value_heads; }
  int rows() const { return RoundUpTo(read_rows() + 1, 16); }
};
void PrintTo(const Net& net, std::ostream* out) {
  *out << net.spec.key_heads << " and " << net.spec.value_heads << " heads of " << net.spec.head_dim
       << ", pairing " << static_cast<int>(net.spec.pairing) << ", convolution of " << net.spec.conv
       << ", " << net.splits << " splits";
}

std::vector<Net> Nets() {
  constexpr HeadPairing kModulo = HeadPairing::kModulo;
  constexpr HeadPairing kDivision = HeadPairing::kDivision;
  return {{Spec(2, 4, 128, 4, kModulo), 1},  {Spec(2, 6, 128, 4, kDivision), 3},
          {Spec(1, 3, 64, 4, kModulo), 2},   {Spec(2, 4, 64, 4, kDivision), 8},
          {Spec(3, 3, 32, 4, kDivision), 1}, {Spec(1, 2, 64, 1, kModulo), 1},
          {Spec(1, 2, 32, 2, kModulo), 2},   {Spec(2, 2, 128, 7, kModulo), 1},
          {Spec(1, 1, 64, 8, kModulo), 1}};
}

// The weights. Value heads forget at different speeds.
struct Weights {
  explicit Weights(const DeltaNetSpec& spec)
      : conv(RandomFloats(size_t{1} * spec.conv * spec.channels(), 11, 0.6f)),
        a(RandomFloats(spec.value_heads, 12)),
        dt_bias(RandomFloats(spec.value_heads, 13)),
        norm(RandomFloats(spec.head_dim, 14)) {
    for (float& value : a) value = -0.3f * std::exp(value);
  }
  std::vector<float> conv;
  std::vector<float> a;
  std::vector<float> dt_bias;
  std::vector<float> norm;
};

// The partials of a token's product, [splits, rows]: a function of the sequence and the position.
std::vector<float> PartialsOf(const Net& net, int sequence, int position) {
  return RandomFloats(size_t{1} * net.splits * net.rows(), 1000 * sequence + position + 100,
                      1.0f / std::sqrt(static_cast<float>(net.splits)));
}

// --- The formulas. -------------------------------------------------------------------------------

// A sequence in F64, from its first token on.
class PlainSequence {
 public:
  struct Token {
    std::vector<double> u;
    std::vector<double> convolved;
    std::vector<double> factors;
    std::vector<double> o;
    std::vector<double> gated;
  };

  PlainSequence(const Net& net, int sequence)
      : net_(net), weights_(net.spec), sequence_(sequence), s_(net.spec.matrix_floats()) {}

  const Token& Next() {
    const DeltaNetSpec& spec = net_.spec;
    const int channels = spec.channels();
    const int values = spec.value_size();
    const std::vector<float> partials =
        PartialsOf(net_, sequence_, static_cast<int>(tokens_.size()));
    std::vector<double> product(net_.rows());
    for (size_t i = 0; i < partials.size(); ++i) product[i % net_.rows()] += double{partials[i]};
    Token token;
    token.u.assign(product.begin(), product.begin() + channels);
    tokens_.push_back(token);
    Token& now = tokens_.back();
    for (int c = 0; c < channels; ++c) {
      double sum = 0;
      for (int lag = 0; lag < spec.conv && lag < std::ssize(tokens_); ++lag) {
        sum += double{weights_.conv[size_t{1} * (spec.conv - 1 - lag) * channels + c]} *
               tokens_[tokens_.size() - 1 - lag].u[c];
      }
      now.convolved.push_back(Silu(sum));
    }
    for (int head = 0; head < 2 * spec.key_heads; ++head) {
      const std::span<double> x =
          std::span(now.convolved).subspan(size_t{1} * head * spec.head_dim, spec.head_dim);
      double scale = 1 / std::sqrt(Squares(x) + double{kEps});
      if (head < spec.key_heads) scale /= std::sqrt(static_cast<double>(spec.head_dim));
      for (double& value : x) value *= scale;
    }
    now.factors.resize(2 * spec.value_heads);
    now.o.resize(values);
    now.gated.resize(values);
    for (int h = 0; h < spec.value_heads; ++h) {
      const double beta = product[channels + values + h];
      const double alpha = product[channels + values + spec.value_heads + h];
      now.factors[h] = std::exp(double{weights_.a[h]} *
                                std::log1p(std::exp(alpha + double{weights_.dt_bias[h]})));
      now.factors[spec.value_heads + h] = 1 / (1 + std::exp(-beta));
      Rule(now, h, &product[channels + size_t{1} * h * spec.head_dim]);
    }
    return now;
  }

  // As the kernels' (DeltaStateFloats), with NaN in the rows of positions that have not been.
  std::vector<double> State() const {
    const DeltaNetSpec& spec = net_.spec;
    std::vector<double> state(size_t{1} * spec.conv * spec.channels(), kNan);
    for (int lag = 0; lag < spec.conv && lag < std::ssize(tokens_); ++lag) {
      const size_t position = tokens_.size() - 1 - lag;
      std::ranges::copy(tokens_[position].u,
                        state.begin() + position % spec.conv * spec.channels());
    }
    state.insert(state.end(), s_.begin(), s_.end());
    return state;
  }
  int tokens() const { return static_cast<int>(tokens_.size()); }

 private:
  static double Silu(double x) { return x / (1 + std::exp(-x)); }
  static double Squares(std::span<const double> x) {
    double sum = 0;
    for (const double value : x) sum += value * value;
    return sum;
  }

  void Rule(Token& now, int value_head, const double* z) {
    const DeltaNetSpec& spec = net_.spec;
    const int dim = spec.head_dim;
    const double* const q = &now.convolved[size_t{1} * spec.key_head_of(value_head) * dim];
    const double* const k = q + spec.key_size();
    const double* const v = &now.convolved[2 * spec.key_size() + size_t{1} * value_head * dim];
    double* const o = &now.o[size_t{1} * value_head * dim];
    for (int b = 0; b < dim; ++b) {
      double* const column = &s_[(size_t{1} * value_head * dim + b) * dim];
      double seen = 0;
      for (int a = 0; a < dim; ++a) {
        column[a] *= now.factors[value_head];
        seen += column[a] * k[a];
      }
      const double d = now.factors[spec.value_heads + value_head] * (v[b] - seen);
      for (int a = 0; a < dim; ++a) {
        column[a] += k[a] * d;
        o[b] += column[a] * q[a];
      }
    }
    const double scale = 1 / std::sqrt(Squares(std::span(o, dim)) / dim + double{kEps});
    for (int b = 0; b < dim; ++b) {
      now.gated[size_t{1} * value_head * dim + b] =
          o[b] * scale * double{weights_.norm[b]} * Silu(z[b]);
    }
  }

  Net net_;
  Weights weights_;
  int sequence_;
  std::vector<Token> tokens_;
  // Transposed, as the kernels' matrices.
  std::vector<double> s_;
};

// --- Steps. --------------------------------------------------------------------------------------

// A sequence's part of a step.
struct Part {
  int sequence;
  int slot;
  int position;
  int tokens;
  int drafts = 0;
  std::vector<RunSave> saves = {};
};

// Rows of a step's tokens and drafts, part after part.
struct Results {
  std::vector<std::vector<float>> o;
  std::vector<std::vector<uint16_t>> out;
  // Results of the launches apart.
  std::vector<std::vector<float>> u;
  std::vector<std::vector<float>> convolved;
  std::vector<std::vector<float>> factors;
  std::vector<int32_t> not_finite;

  void Append(const Results& more) {
    o.insert(o.end(), more.o.begin(), more.o.end());
    out.insert(out.end(), more.out.begin(), more.out.end());
  }
};

template <typename T>
std::vector<T> RowOf(const std::vector<T>& rows, int64_t row, int64_t size) {
  return {rows.begin() + row * size, rows.begin() + (row + 1) * size};
}

// The states of a layer among others, and steps that move them on. What nothing writes is NaN.
class Machine {
 public:
  Machine(const Net& net, const DeviceTraits& traits, cudaStream_t stream)
      : net_(net),
        traits_(traits),
        stream_(stream),
        weights_(net.spec),
        state_floats_(DeltaStateFloats(net.spec)),
        draft_floats_(DeltaDraftFloats(net.spec)),
        states_(kSlots * kLayers * state_floats_),
        drafts_(kDrafts * kLayers * draft_floats_),
        conv_(weights_.conv),
        a_(weights_.a),
        dt_bias_(weights_.dt_bias),
        norm_(weights_.norm) {}

  // Changes what a token's partials are, by (sequence, position).
  std::map<std::pair<int, int>, std::vector<float>> partials;

  // The step's tokens and drafts, with unused entries among them and behind them. In `one_launch`
  // each part is one token.
  Results Run(const std::vector<Part>& parts, bool one_launch = false) {
    const DeltaNetSpec& spec = net_.spec;
    const int channels = spec.channels();
    const int values = spec.value_size();
    std::vector<TokenEntry> tokens;
    std::vector<int32_t> run_of_token;
    std::vector<SequenceEntry> sequences;
    std::vector<RunEntry> runs;
    // The first is no run's.
    std::vector<RunSave> saves = {{.tokens = 1, .state = 0}};
    std::vector<const Part*> part_of_token;
    const auto add_unused_token = [&] {
      tokens.push_back({.id = 0, .sequence = -1, .position = 0});
      run_of_token.push_back(-1);
      part_of_token.push_back(nullptr);
    };
    const auto add_unused_run = [&] {
      runs.push_back({.slot = -1,
                      .first_token = -1,
                      .tokens = 0,
                      .drafts = 0,
                      .first_position = -1,
                      .first_draft = -1,
                      .first_save = -1,
                      .saves = 0,
                      .first_row = -1});
    };
    int drafts = 0;
    for (const Part& part : parts) {
      if (runs.size() == 1) {
        add_unused_run();
        add_unused_token();
      }
      runs.push_back({.slot = part.slot,
                      .first_token = static_cast<int32_t>(tokens.size()),
                      .tokens = part.tokens,
                      .drafts = part.drafts,
                      .first_position = part.position,
                      .first_draft = drafts,
                      .first_save = static_cast<int32_t>(saves.size()),
                      .saves = static_cast<int32_t>(part.saves.size()),
                      // Nothing is drawn.
                      .first_row = -1});
      saves.insert(saves.end(), part.saves.begin(), part.saves.end());
      for (int i = 0; i < part.tokens + part.drafts; ++i) {
        const bool draft = i >= part.tokens;
        if (i == 0 || draft) {
          SequenceEntry entry = {};
          entry.slot = draft ? kFirstDraftSlot + drafts + i - part.tokens : part.slot;
          sequences.push_back(entry);
        }
        tokens.push_back({.id = 0,
                          .sequence = static_cast<int32_t>(sequences.size()) - 1,
                          .position = part.position + i});
        run_of_token.push_back(static_cast<int32_t>(runs.size()) - 1);
        part_of_token.push_back(&part);
      }
      drafts += part.drafts;
    }
    add_unused_run();
    add_unused_token();
    add_unused_token();

    const int count = static_cast<int>(tokens.size());
    const int rows = net_.rows();
    const int partials_tokens = count + 3;
    std::vector<float> product(size_t{1} * net_.splits * partials_tokens * rows, kNan);
    for (int t = 0; t < count; ++t) {
      if (part_of_token[t] == nullptr) continue;
      const int sequence = part_of_token[t]->sequence;
      const auto changed = partials.find({sequence, tokens[t].position});
      const std::vector<float> of_token = changed == partials.end()
                                              ? PartialsOf(net_, sequence, tokens[t].position)
                                              : changed->second;
      for (int s = 0; s < net_.splits; ++s) {
        std::copy_n(of_token.begin() + s * rows, net_.read_rows(),
                    product.begin() + (size_t{1} * s * partials_tokens + t) * rows);
      }
    }

    const DeviceArray<float> device_product(product);
    const DeviceArray<TokenEntry> device_tokens(tokens);
    const DeviceArray<SequenceEntry> device_sequences(sequences);
    const DeviceArray<RunEntry> device_runs(runs);
    const DeviceArray<int32_t> device_run_of_token(run_of_token);
    const DeviceArray<RunSave> device_saves(saves);
    const DeviceArray<int32_t> not_finite(std::vector<int32_t>(kAllSlots, 0));
    const DeviceArray<float> convolved(size_t{1} * count * channels);
    const DeviceArray<float> factors(size_t{1} * count * 2 * spec.value_heads);
    const DeviceArray<float> o(size_t{1} * count * values);
    const DeviceArray<float> u(size_t{1} * count * channels);
    const DeviceActivations out(count, values);
    DeltaArgs args = {
        .spec = spec,
        .step = {.tokens = device_tokens.data(), .sequences = device_sequences.data()},
        .runs = {.runs = device_runs.data(),
                 .run_of_token = device_run_of_token.data(),
                 .saves = device_saves.data()},
        .tokens = count,
        .sequences = static_cast<int>(runs.size()),
        .inputs = {.partials = device_product.data(),
                   .splits = net_.splits,
                   .partials_tokens = partials_tokens,
                   .rows = rows,
                   .conv = conv_.data(),
                   .a = a_.data(),
                   .dt_bias = dt_bias_.data(),
                   .norm = norm_.data()},
        .norm_eps = kEps,
        .states = states(kLayer),
        .not_finite = not_finite.data(),
        .out = out.view()};
    if (one_launch) {
      EXPECT_EQ(LaunchDeltaToken(args, stream_), cudaSuccess);
    } else {
      args.drafts = draft_view(kLayer);
      args.convolved = convolved.data();
      args.factors = factors.data();
      args.o = o.data();
      args.u = u.data();
      EXPECT_EQ(LaunchDeltaInputs(args, stream_), cudaSuccess);
      EXPECT_EQ(LaunchDeltaRule(args, traits_, stream_), cudaSuccess);
      EXPECT_EQ(LaunchDeltaGate(args, stream_), cudaSuccess);
    }

    Results results;
    const std::vector<float> all_o = o.Read();
    const std::vector<float> all_u = u.Read();
    const std::vector<float> all_convolved = convolved.Read();
    const std::vector<float> all_factors = factors.Read();
    const std::vector<uint16_t> all_out = out.Read();
    for (int t = 0; t < count; ++t) {
      if (part_of_token[t] == nullptr) {
        for (const uint16_t half : RowOf(all_out, t, values)) EXPECT_TRUE(IsPoison(half));
        for (const float value : RowOf(all_o, t, values)) EXPECT_TRUE(IsPoison(value));
        continue;
      }
      results.out.push_back(RowOf(all_out, t, values));
      results.o.push_back(RowOf(all_o, t, values));
      results.u.push_back(RowOf(all_u, t, channels));
      results.convolved.push_back(RowOf(all_convolved, t, channels));
      results.factors.push_back(RowOf(all_factors, t, 2 * spec.value_heads));
    }
    EXPECT_EQ(out.WrittenOutside(), 0);
    results.not_finite = not_finite.Read();
    return results;
  }

  // Replays in the layers from kLayer on; only the drafts of kLayer were kept.
  void Replay(const std::vector<DeltaReplayArgs::Replay>& of) {
    DeltaReplayArgs args = {.spec = net_.spec,
                            .layers = 1,
                            .replays = static_cast<int>(of.size()),
                            .states = states(kLayer),
                            .drafts = draft_view(kLayer)};
    std::ranges::copy(of, args.of);
    EXPECT_EQ(LaunchDeltaReplay(args, stream_), cudaSuccess);
  }

  std::vector<float> State(int slot, int layer = kLayer) const {
    return RowOf(states_.Read(), slot * kLayers + layer, state_floats_);
  }
  std::vector<float> States() const { return states_.Read(); }
  void SetState(int slot, const std::vector<float>& state) {
    std::vector<float> all = states_.Read();
    std::ranges::copy(state, all.begin() + (slot * kLayers + kLayer) * state_floats_);
    states_.Write(all);
  }
  // Number of floats outside the layer, or of other slots, that were written to.
  int64_t WrittenOutside(const std::vector<int>& slots) const {
    const std::vector<float> all = states_.Read();
    int64_t written = 0;
    for (int slot = 0; slot < kSlots; ++slot) {
      for (int layer = 0; layer < kLayers; ++layer) {
        if (layer == kLayer && std::ranges::find(slots, slot) != slots.end()) continue;
        for (const float value : RowOf(all, slot * kLayers + layer, state_floats_)) {
          if (!IsPoison(value)) ++written;
        }
      }
    }
    return written;
  }

  DeltaStates states(int layer) const {
    return {.data = states_.data(),
            .state_floats = kLayers * state_floats_,
            .layer_offset = layer * state_floats_};
  }
  DeltaDrafts draft_view(int layer) const {
    return {.data = drafts_.data(),
            .draft_floats = kLayers * draft_floats_,
            .layer_offset = layer * draft_floats_};
  }
  std::vector<float> Draft(int draft) const {
    return RowOf(drafts_.Read(), draft * kLayers + kLayer, draft_floats_);
  }
  // Gives layer `to` the states and drafts of kLayer.
  void CopyLayer(int to) {
    const auto copy = [&](DeviceArray<float>& array, int64_t count, int64_t size) {
      std::vector<float> all = array.Read();
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(all.begin() + (i * kLayers + kLayer) * size, size,
                    all.begin() + (i * kLayers + to) * size);
      }
      array.Write(all);
    };
    copy(states_, kSlots, state_floats_);
    copy(drafts_, kDrafts, draft_floats_);
  }

 private:
  Net net_;
  const DeviceTraits& traits_;
  cudaStream_t stream_;
  Weights weights_;
  int64_t state_floats_;
  int64_t draft_floats_;
  DeviceArray<float> states_;
  DeviceArray<float> drafts_;
  DeviceArray<float> conv_;
  DeviceArray<float> a_;
  DeviceArray<float> dt_bias_;
  DeviceArray<float> norm_;
};

class DeltaNetTest : public GpuTest {
 protected:
  // The results of a sequence's tokens one after another, in steps of one token and one launch.
  Results OneByOne(Machine& machine, int sequence, int slot, int first, int count) {
    Results all;
    for (int i = first; i < first + count; ++i) {
      all.Append(machine.Run({{sequence, slot, i, 1}}, true));
    }
    return all;
  }
  static ::testing::AssertionResult SameRows(const std::vector<std::vector<uint16_t>>& a,
                                             const std::vector<std::vector<uint16_t>>& b) {
    if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << ", " << b.size();
    for (size_t i = 0; i < a.size(); ++i) {
      const auto same = SameBits(a[i], b[i]);
      if (!same) return ::testing::AssertionFailure() << "row " << i << ": " << same.message();
    }
    return ::testing::AssertionSuccess();
  }
  // Each element differs by at most `tolerance` of the largest; those that are NaN were not
  // written.
  static void ExpectNear(const std::vector<float>& actual, const std::vector<double>& expected,
                         double tolerance, const char* what) {
    ASSERT_GE(actual.size(), expected.size());
    double largest = 0;
    for (const double value : expected) {
      if (!std::isnan(value)) largest = std::max(largest, std::abs(value));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(IsPoison(actual[i])) << what << " " << i;
        continue;
      }
      ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << what << " " << i;
    }
  }
  static std::vector<int> SlotsSet(const Results& results) {
    std::vector<int> slots;
    for (int slot = 0; slot < kAllSlots; ++slot) {
      if (results.not_finite[slot] != 0) slots.push_back(slot);
    }
    return slots;
  }

  // Roundings of F32: of a few operations and approximations; and of S^T q, whose sums are much
  // smaller than their terms where a query is nearly orthogonal to all keys.
  static constexpr double kFew = 0x1p-19;
  static constexpr double kMany = 0x1p-15;
  // And of F16.
  static constexpr double kHalf = 0x1p-11;
};

TEST_F(DeltaNetTest, FollowsTheFormulas) {
  for (const Net& net : Nets()) {
    SCOPED_TRACE(::testing::PrintToString(net));
    Machine machine(net, traits(), stream());
    std::map<int, PlainSequence> plain;
    // Prompts, one of them in parts, and single tokens.
    const std::vector<std::vector<Part>> steps = {
        {{1, 3, 0, 37}, {2, 0, 0, 5}},
        {{2, 0, 5, 1}, {1, 3, 37, 20}, {3, 4, 0, 3}, {4, 1, 0, 1}},
        {{1, 3, 57, 1}, {2, 0, 6, 2}, {3, 4, 3, 9}, {4, 1, 1, 1}}};
    for (const std::vector<Part>& parts : steps) {
      const Results results = machine.Run(parts);
      EXPECT_TRUE(SlotsSet(results).empty());
      size_t row = 0;
      for (const Part& part : parts) {
        PlainSequence& sequence =
            plain.try_emplace(part.sequence, net, part.sequence).first->second;
        ASSERT_EQ(sequence.tokens(), part.position);
        for (int i = 0; i < part.tokens; ++i, ++row) {
          SCOPED_TRACE(::testing::Message()
                       << "sequence " << part.sequence << " token " << part.position + i);
          const PlainSequence::Token& token = sequence.Next();
          ExpectNear(results.u[row], token.u, kFew, "u");
          ExpectNear(results.convolved[row], token.convolved, kFew, "convolved");
          ExpectNear(results.factors[row], token.factors, kFew, "factors");
          ExpectNear(results.o[row], token.o, kMany, "o");
          ExpectNear(ToFloats(results.out[row]), token.gated, kHalf + kMany, "gated");
        }
        ExpectNear(machine.State(part.slot), sequence.State(), kFew, "state");
      }
    }
    EXPECT_EQ(machine.WrittenOutside({0, 1, 3, 4}), 0);
  }
}

// The ring has exactly the inputs, so that the bits of a convolution do not change either.
TEST_F(DeltaNetTest, PartsOfAPromptAndSingleTokensHaveTheSameBits) {
  constexpr int kTokens = 29;
  for (const Net& net : Nets()) {
    SCOPED_TRACE(::testing::PrintToString(net));
    Machine machine(net, traits(), stream());
    const Results expected = OneByOne(machine, 1, 0, 0, kTokens);
    const std::vector<float> state = machine.State(0);
    EXPECT_EQ(machine.WrittenOutside({0}), 0);
    for (const std::vector<int>& cuts : std::vector<std::vector<int>>{
             {29}, {1, 2, 3, 4, 5, 14}, {8, 8, 8, 5}, {16, 13}, {7, 22}}) {
      SCOPED_TRACE(::testing::PrintToString(cuts));
      Results actual;
      int position = 0;
      for (const int tokens : cuts) {
        actual.Append(machine.Run({{1, 2, position, tokens}}));
        position += tokens;
      }
      ASSERT_TRUE(SameRows(actual.out, expected.out));
      ASSERT_TRUE(SameBits(machine.State(2), state));
    }
    // Single tokens by the launches of any step, in one launch, and among parts of others.
    Results single;
    for (int i = 0; i < kTokens; ++i) {
      const Results of_step =
          i % 3 == 0   ? machine.Run({{1, 4, i, 1}})
          : i % 3 == 1 ? machine.Run({{9, 2, 0, i}, {1, 4, i, 1}, {8, 1, 0, 3}})
                       : machine.Run({{9, 2, i - 1, 1}, {1, 4, i, 1}, {8, 1, 3, 1}}, true);
      const size_t row = i % 3 == 0 ? 0 : i % 3 == 1 ? i : 1;
      single.out.push_back(of_step.out[row]);
    }
    ASSERT_TRUE(SameRows(single.out, expected.out));
    ASSERT_TRUE(SameBits(machine.State(4), state));
  }
}

// A long step, whose tokens share warps and stages otherwise than a short one's.
TEST_F(DeltaNetTest, ManyTokensHaveTheSameBits) {
  constexpr int kTokens = 1100;
  constexpr int kOthers = 130;
  const Net net = {Spec(1, 2, 64, 4, HeadPairing::kModulo), 1};
  Machine machine(net, traits(), stream());
  const Results whole = machine.Run({{2, 1, 0, kOthers}, {1, 0, 0, kTokens}, {3, 2, 0, kOthers}});
  const Results others = machine.Run({{2, 3, 0, kOthers}});
  Results parts;
  for (int i = 0; i < kTokens; i += 110) parts.Append(machine.Run({{1, 4, i, 110}}));
  parts.out.insert(parts.out.begin(), others.out.begin(), others.out.end());
  ASSERT_TRUE(SameRows({whole.out.begin(), whole.out.begin() + kOthers + kTokens}, parts.out));
  EXPECT_TRUE(SameBits(machine.State(0), machine.State(4)));
  EXPECT_TRUE(SameBits(machine.State(1), machine.State(3)));
}

TEST_F(DeltaNetTest, DraftsAreWhatTheirTokensAreAndAreReplayed) {
  constexpr int kBefore = 9;
  constexpr int kTokens = 2;
  constexpr int kGuesses = 5;
  for (const Net& net : Nets()) {
    SCOPED_TRACE(::testing::PrintToString(net));
    Machine tokens(net, traits(), stream());
    const Results of_first = OneByOne(tokens, 1, 0, 0, kBefore + kTokens + kGuesses);
    const Results of_second = OneByOne(tokens, 2, 1, 0, 1 + 3);
    Machine machine(net, traits(), stream());
    machine.Run({{1, 3, 0, kBefore}});
    const Results step =
        machine.Run({{2, 0, 0, 1, 3}, {7, 1, 0, 4}, {1, 3, kBefore, kTokens, kGuesses}});
    EXPECT_TRUE(SlotsSet(step).empty());
    const auto begin = step.out.begin();
    EXPECT_TRUE(SameRows({begin, begin + 4}, of_second.out));
    EXPECT_TRUE(SameRows({begin + 8, step.out.end()},
                         {of_first.out.begin() + kBefore, of_first.out.end()}));
    // The drafts have not moved the states.
    Machine rest(net, traits(), stream());
    OneByOne(rest, 1, 0, 0, kBefore + kTokens);
    OneByOne(rest, 2, 1, 0, 1);
    const std::vector<float> first = machine.State(3);
    const std::vector<float> second = machine.State(0);
    ASSERT_TRUE(SameBits(first, rest.State(0)));
    ASSERT_TRUE(SameBits(second, rest.State(1)));
    const std::vector<float> before = machine.States();
    for (int right = 1; right <= kGuesses; ++right) {
      SCOPED_TRACE(right);
      OneByOne(rest, 1, 0, kBefore + kTokens + right - 1, 1);
      machine.SetState(3, first);
      machine.Replay({{3, 3, right, kBefore + kTokens}});
      ASSERT_TRUE(SameBits(machine.State(3), rest.State(0)));
      ASSERT_TRUE(SameBits(machine.State(0), second));
    }
    machine.SetState(3, first);
    machine.Replay({{3, 3, kGuesses, kBefore + kTokens}, {0, 0, 3, 1}});
    EXPECT_TRUE(SameBits(machine.State(3), tokens.State(0)));
    EXPECT_TRUE(SameBits(machine.State(0), tokens.State(1)));
    EXPECT_EQ(machine.WrittenOutside({0, 1, 3}), 0);
  }
}

// A state that is saved within a run has the bits that the slot's has where a run ends there, with
// its ring; and the run's own state and results are as without.
TEST_F(DeltaNetTest, StatesAreSavedAnywhereInARun) {
  constexpr int kTokens = 20;
  constexpr int kGuesses = 3;
  for (const Net& net : Nets()) {
    SCOPED_TRACE(::testing::PrintToString(net));
    Machine tokens(net, traits(), stream());
    const std::vector<float> nothing = tokens.State(0);
    std::vector<std::vector<float>> states = {nothing};
    Results expected;
    for (int i = 0; i < kTokens + kGuesses; ++i) {
      expected.Append(OneByOne(tokens, 1, 0, i, 1));
      states.push_back(tokens.State(0));
    }
    Machine machine(net, traits(), stream());
    const auto clear = [&] {
      for (int slot = 0; slot < kSlots; ++slot) machine.SetState(slot, nothing);
    };
    for (const int begin : {0, 1, 2, 9}) {
      const int count = kTokens - begin;
      for (const std::vector<int>& at : std::vector<std::vector<int>>{
               {1, 2, 3, 4}, {5, 7, 8, 9}, {count - 1}, {2, count - 2, count}, {count}}) {
        for (const int drafts : {0, kGuesses}) {
          SCOPED_TRACE(::testing::Message() << "from " << begin << " after "
                                            << ::testing::PrintToString(at) << ", " << drafts);
          clear();
          if (begin > 0) machine.Run({{1, 2, 0, begin}});
          Part part = {1, 2, begin, count, drafts};
          constexpr int kCells[] = {4, 0, 3, 1};
          for (size_t i = 0; i < at.size(); ++i) part.saves.push_back({at[i], kCells[i]});
          const Results of_run = machine.Run({part});
          ASSERT_TRUE(SameRows(
              of_run.out, {expected.out.begin() + begin, expected.out.begin() + kTokens + drafts}));
          ASSERT_TRUE(SameBits(machine.State(2), states[kTokens]));
          for (const RunSave& save : part.saves) {
            ASSERT_TRUE(SameBits(machine.State(save.state), states[begin + save.tokens]))
                << save.tokens;
          }
        }
      }
    }
    // Single tokens, of which some runs' are saved.
    for (const bool one_launch : {false, true}) {
      clear();
      machine.Run({{1, 2, 0, 1}});
      for (int i = 1; i < 11; ++i) {
        SCOPED_TRACE(::testing::Message() << "token " << i << ", " << one_launch);
        for (const int slot : {3, 4}) machine.SetState(slot, nothing);
        machine.Run({{7, 0, i - 1, 1, 0, {{1, 4}}}, {1, 2, i, 1, 0, {{1, 3}}}, {8, 1, i - 1, 1}},
                    one_launch);
        ASSERT_TRUE(SameBits(machine.State(2), states[i + 1]));
        ASSERT_TRUE(SameBits(machine.State(3), states[i + 1]));
        ASSERT_TRUE(SameBits(machine.State(4), machine.State(0)));
      }
    }
    EXPECT_EQ(machine.WrittenOutside({0, 1, 2, 3, 4}), 0);
  }
}

TEST_F(DeltaNetTest, AllLayersAreReplayed) {
  const Net net = {Spec(1, 3, 64, 4, HeadPairing::kModulo), 2};
  Machine machine(net, traits(), stream());
  machine.Run({{1, 2, 0, 6, 4}});
  machine.CopyLayer(2);
  DeltaReplayArgs args = {.spec = net.spec,
                          .layers = 2,
                          .replays = 1,
                          .states = machine.states(kLayer),
                          .drafts = machine.draft_view(kLayer)};
  args.of[0] = {.slot = 2, .first_draft = 0, .drafts = 4, .position = 6};
  ASSERT_EQ(LaunchDeltaReplay(args, stream()), cudaSuccess);
  Machine tokens(net, traits(), stream());
  OneByOne(tokens, 1, 0, 0, 10);
  EXPECT_TRUE(SameBits(machine.State(2, 1), tokens.State(0)));
  EXPECT_TRUE(SameBits(machine.State(2, 2), tokens.State(0)));
  EXPECT_TRUE(IsPoison(machine.State(2, 0)[0]));
}

// A slot's second sequence begins at position 0, whatever the first left.
TEST_F(DeltaNetTest, BeginsEmpty) {
  const Net net = {Spec(1, 2, 64, 4, HeadPairing::kModulo), 1};
  for (const bool one_launch : {false, true}) {
    Machine machine(net, traits(), stream());
    const Results fresh = machine.Run({{1, 0, 0, 1}}, one_launch);
    machine.Run({{2, 1, 0, 12}});
    EXPECT_TRUE(SameRows(machine.Run({{1, 1, 0, 1}}, one_launch).out, fresh.out));
    machine.Run({{1, 0, 1, 3}});
    machine.Run({{1, 1, 1, 3}});
    EXPECT_TRUE(SameBits(machine.State(1), machine.State(0)));
  }
}

TEST_F(DeltaNetTest, SlotsOfValuesThatAreNotFinite) {
  const Net net = {Spec(1, 2, 64, 4, HeadPairing::kModulo), 1};
  const int channels = net.spec.channels();
  const int values = net.spec.value_size();
  const int dim = net.spec.head_dim;
  // A query, a key, a value, sigmoid(b) and alpha.
  for (const int row : {3, dim + 60, channels - 1, channels + values, channels + values + 3}) {
    for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(::testing::Message() << "row " << row << ": " << bad);
      // exp(ssm_a softplus(infinity)) is 0, and sigmoid(infinity) 1.
      const bool finite = std::isinf(bad) && row >= channels;
      Machine machine(net, traits(), stream());
      std::vector<float> partials = PartialsOf(net, 1, 2);
      partials[row] = bad;
      machine.partials[{1, 2}] = partials;
      const auto set = [&](int slot) {
        return finite ? std::vector<int>{} : std::vector<int>{slot};
      };
      EXPECT_EQ(SlotsSet(machine.Run({{2, 0, 0, 4}, {1, 3, 0, 4}, {3, 1, 0, 2}})), set(3));
      machine.Run({{2, 0, 0, 2}, {1, 3, 0, 2}});
      EXPECT_EQ(SlotsSet(machine.Run({{2, 0, 2, 1}, {1, 3, 2, 1}}, true)), set(3));
      // The first of two drafts; the second sees it.
      machine.Run({{2, 0, 0, 2}, {1, 3, 0, 1}});
      const std::vector<int> drafts = SlotsSet(machine.Run({{2, 0, 2, 1, 1}, {1, 3, 1, 1, 2}}));
      if (finite) {
        EXPECT_EQ(drafts, std::vector<int>{});
      } else {
        EXPECT_EQ(drafts, (std::vector<int>{kFirstDraftSlot + 1, kFirstDraftSlot + 2}));
      }
      // The state behind the tokens that are no drafts is sound.
      EXPECT_TRUE(SlotsSet(machine.Run({{2, 0, 3, 1}, {4, 3, 2, 1}}, true)).empty());
    }
  }
}

TEST_F(DeltaNetTest, RefusesOtherNets) {
  const Net net = {Spec(1, 2, 64, 4, HeadPairing::kModulo), 1};
  DeltaArgs args = {.spec = net.spec, .tokens = 1, .sequences = 1, .inputs = {.rows = net.rows()}};
  const auto refused = [&] {
    return LaunchDeltaInputs(args, stream()) == cudaErrorInvalidValue &&
           LaunchDeltaRule(args, traits(), stream()) == cudaErrorInvalidValue &&
           LaunchDeltaGate(args, stream()) == cudaErrorInvalidValue &&
           LaunchDeltaToken(args, stream()) == cudaErrorInvalidValue;
  };
  args.spec.head_dim = 96;
  EXPECT_TRUE(refused());
  args.spec = net.spec;
  args.spec.conv = 9;
  EXPECT_TRUE(refused());
  args.spec = net.spec;
  args.inputs.rows += 1;
  EXPECT_TRUE(refused());
}

class GateAttentionTest : public GpuTest {};

TEST_F(GateAttentionTest, MultipliesBySigmoids) {
  for (const int cols : {32, 1032, 4096}) {
    for (const int splits : {1, 3, 8}) {
      for (const int tokens : {1, 9}) {
        SCOPED_TRACE(::testing::Message()
                     << cols << " columns, " << splits << " splits, " << tokens << " tokens");
        const int partials_tokens = tokens + 2;
        const size_t row_floats = size_t{1} * partials_tokens * cols;
        std::vector<float> gates = RandomFloats(splits * row_floats, 1, 2.0f);
        // Gates of which only the sign matters.
        gates[0] = 1000;
        gates[1] = -1000;
        const std::vector<float> values = RandomFloats(size_t{1} * tokens * cols, 2, 3.0f);
        const DeviceArray<float> partials(gates);
        const DeviceActivations activations(std::span<const float>(values), tokens, cols);
        const std::vector<float> before = ToFloats(activations.Read());
        ASSERT_EQ(LaunchGateAttention({.partials = partials.data(),
                                       .splits = splits,
                                       .partials_tokens = partials_tokens,
                                       .cols = cols,
                                       .tokens = tokens,
                                       .values = activations.view()},
                                      stream()),
                  cudaSuccess);
        const std::vector<float> actual = ToFloats(activations.Read());
        for (size_t i = 0; i < actual.size(); ++i) {
          double gate = 0;
          for (int s = 0; s < splits; ++s) gate += double{gates[s * row_floats + i]};
          const double expected = double{before[i]} / (1 + std::exp(-gate));
          ASSERT_NEAR(actual[i], expected, 0x1p-10 * std::abs(expected) + 0x1p-24) << i;
        }
        EXPECT_EQ(actual[0], before[0]);
      }
    }
  }
}

}  // namespace
}  // namespace orcd::cuda
