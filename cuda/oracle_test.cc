// Compares whole models on the GPU with logits that another program computed in F64 and stored in
// $ORCD_ORACLE_DIR. Real models are named by variables of the environment, or lie where
// tools/fetch-model puts them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/oracle_files_for_test.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/cpu/plain_moe_file_for_test.h"
#include "runtime/cpu/predictor.h"
#include "runtime/model/model.h"
#include "testing/numpy.h"
#include "testing/oracle_predictions.h"
#include "testing/oracle_state.h"

namespace orcd::cuda {
namespace {

using cpu::NumpyArray;
using cpu::ReadNpy;
using cpu::ReadNpz;

constexpr double kNmse = 1e-5;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}
std::string OracleDir() { return Variable("ORCD_ORACLE_DIR"); }

std::vector<int32_t> ReadTokens(const std::string& path) {
  std::ifstream file(path);
  std::vector<int32_t> tokens;
  for (int32_t token; file >> token;) tokens.push_back(token);
  return tokens;
}

// For one sequence of `tokens` tokens.
BackendOptions OptionsOf(int tokens) {
  BackendOptions options;
  options.max_seqs = 1;
  options.max_step_tokens = tokens;
  // The oracle takes LongRoPE's factors for as many positions as there are tokens.
  options.max_context = tokens;
  options.kv_cache_bytes = int64_t{64} << 20;
  return options;
}
std::unique_ptr<Backend> BackendFor(const std::shared_ptr<const Model>& model, int tokens) {
  NullLoadObserver observer;
  auto backend = CreateBackendForTest(model, OptionsOf(tokens), observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

std::vector<int32_t> BlocksOf(size_t tokens) {
  return BlockRange(0, (static_cast<int>(tokens) + 15) / 16);
}

// Logits, [tokens, vocab], of tokens that run in steps of `chunk`.
std::vector<float> Logits(const std::shared_ptr<const Model>& model,
                          std::span<const int32_t> tokens, int chunk) {
  const auto backend = BackendFor(model, static_cast<int>(tokens.size()));
  if (backend == nullptr) return {};
  return TeacherForce(*backend, tokens, BlocksOf(tokens.size()), chunk);
}

std::shared_ptr<const Model> LoadModel(const std::string& path, bool with_text) {
  NullLoadObserver observer;
  auto model = Model::Load(path, {.with_text = with_text}, observer);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

double Square(double x) { return x * x; }

// NMSE of logits, and the likeliest token of each row, which must be the same unless the margin is
// within the error.
void ExpectAgreement(std::span<const float> actual, std::span<const float> expected, int64_t vocab,
                     const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  double squared = 0;
  double reference = 0;
  for (size_t row = 0; row < expected.size(); row += vocab) {
    const auto want = expected.subspan(row, vocab);
    const auto have = actual.subspan(row, vocab);
    double error = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      const double difference = double{have[i]} - double{want[i]};
      squared += Square(difference);
      reference += Square(want[i]);
      error = std::max(error, std::abs(difference));
    }
    std::vector<float> sorted(want.begin(), want.end());
    std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
    if (double{sorted[0]} - double{sorted[1]} <= 2 * error) continue;
    EXPECT_EQ(std::max_element(have.begin(), have.end()) - have.begin(),
              std::max_element(want.begin(), want.end()) - want.begin())
        << what << ", token " << row / vocab;
  }
  std::printf("%s: NMSE %.2e\n", what.c_str(), squared / reference);
  EXPECT_LE(squared / reference, kNmse) << what;
}

// A model's path in the oracle's folder, without `.gguf`; the tokens lie beside it.
class GpuFileOracleTest : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
    GpuTest::SetUp();
    const std::filesystem::path path = std::filesystem::path(OracleDir()) / GetParam();
    tokens_ = ReadTokens(path.parent_path() / "tokens.txt");
    const NumpyArray oracle = ReadNpy(path.string() + ".npy");
    ASSERT_EQ(oracle.type, "<f4");
    ASSERT_EQ(oracle.shape.size(), 2u);
    ASSERT_EQ(oracle.shape[0], std::ssize(tokens_));
    ASSERT_GE(tokens_.size(), 64u);
    expected_ = oracle.As<float>();
    // The files' tokenizers are made up; only the weights mean something.
    model_ = LoadModel(path.string() + ".gguf", /*with_text=*/false);
    ASSERT_NE(model_, nullptr);
    vocab_ = oracle.shape[1];
    ASSERT_EQ(vocab_, model_->spec().vocab);
  }

  std::vector<int32_t> tokens_;
  std::vector<float> expected_;
  std::shared_ptr<const Model> model_;
  int64_t vocab_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Nano, GpuFileOracleTest,
                         ::testing::Values("logits/nano-F16", "logits/nano-BF16",
                                           "logits/nano-Q8_0", "logits/nano-Q6_K",
                                           "logits/nano-Q5_K_M", "logits/nano-Q5_1",
                                           "logits/nano-Q5_0", "logits/nano-Q4_K_M",
                                           "logits/nano-Q4_1", "logits/nano-Q4_0",
                                           "logits/nano-Q3_K_M", "logits/nano-Q2_K"),
                         OracleFileName);

INSTANTIATE_TEST_SUITE_P(Architectures, GpuFileOracleTest,
                         ::testing::ValuesIn(kArchitectureOracles), OracleFileName);

INSTANTIATE_TEST_SUITE_P(Hybrids, GpuFileOracleTest, ::testing::ValuesIn(kHybridOracles),
                         OracleFileName);

TEST_P(GpuFileOracleTest, LogitsAgree) {
  // One step of all tokens, steps of some, and steps of a single token.
  for (const int chunk : {static_cast<int>(tokens_.size()), 37, 1}) {
    ExpectAgreement(Logits(model_, tokens_, chunk), expected_, vocab_,
                    std::string(GetParam()) + " in steps of " + std::to_string(chunk));
  }
}

// A step with a tap, which shows logits, has kernels of its own. Steps of one token as service runs
// them show the log-probabilities of the likeliest tokens.
TEST_P(GpuFileOracleTest, DrawsAgree) {
  const auto backend = BackendFor(model_, static_cast<int>(tokens_.size()));
  ASSERT_NE(backend, nullptr);
  const std::vector<int32_t> blocks = BlocksOf(tokens_.size());
  SamplingParams params = Greedy();
  params.logprobs = 20;
  double squared = 0;
  double reference = 0;
  for (int t = 0; t < static_cast<int>(tokens_.size()); ++t) {
    const auto token = std::span<const int32_t>(tokens_).subspan(t, 1);
    StepSequence seq =
        t == 0 ? StartSequence(0, token, blocks, params) : ContinueSequence(0, t, token, blocks);
    seq.sample = true;
    const auto samples = SamplesOf(RunStep(*backend, {seq}));
    ASSERT_EQ(samples.size(), 1u);
    ASSERT_TRUE(samples[0].finite);
    const auto row = std::span<const float>(expected_).subspan(t * vocab_, vocab_);
    const float most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float logit : row) sum += std::exp(double{logit} - double{most});
    ASSERT_EQ(samples[0].top.size(), 20u);
    for (const auto& [id, logprob] : samples[0].top) {
      const double expected = double{row[id]} - double{most} - std::log(sum);
      squared += Square(double{logprob} - expected);
      reference += Square(row[id]);
    }
  }
  std::printf("%s drawn: NMSE %.2e\n", GetParam(), squared / reference);
  EXPECT_LE(squared / reference, kNmse);
}

// The likeliest token, or nothing if rounding may decide between it and another.
std::optional<int32_t> Likeliest(std::span<const float> logits) {
  constexpr double kMargin = 0.03;
  double squares = 0;
  for (const float logit : logits) squares += Square(logit);
  const auto most = std::ranges::max_element(logits);
  const double least = double{*most} - kMargin * std::sqrt(squares / std::ssize(logits));
  if (std::ranges::count_if(logits, [&](float logit) { return logit >= least; }) > 1) return {};
  return static_cast<int32_t>(most - logits.begin());
}

// A file with a block that predicts tokens.
class GpuPredictOracleTest : public GpuTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Files, GpuPredictOracleTest,
                         ::testing::Values("hybrid/qwen35-mtp-F16", "arch2/glm4moe-mtp-F16"),
                         OracleFileName);

// The first prediction is the oracle's, and the second follows from it as on the CPU.
TEST_P(GpuPredictOracleTest, StepsPredictTheSame) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const std::filesystem::path path = std::filesystem::path(OracleDir()) / GetParam();
  const std::vector<int32_t> tokens = ReadTokens(path.parent_path() / "tokens.txt");
  const auto count = static_cast<int>(tokens.size());
  const auto model = LoadModel(path.string() + ".gguf", /*with_text=*/false);
  ASSERT_NE(model, nullptr);
  const auto hidden_size = static_cast<size_t>(model->spec().hidden);
  const auto vocab = static_cast<size_t>(model->spec().vocab);
  BackendOptions options = OptionsOf(count);
  const auto blocks = BlocksOf(tokens.size());
  HiddenTap tap;
  const auto on_cpu = cpu::MakeTestBackend(model, options);
  ASSERT_NE(on_cpu, nullptr);
  RunStep(*on_cpu, {StartSequence(0, tokens, blocks)}, &tap);
  auto predictor = CreateCpuPredictor(model, KvType::kF32, count, 2);
  ASSERT_TRUE(predictor.ok()) << predictor.status();
  options.predict = true;
  NullLoadObserver observer;
  const auto backend = CreateBackendForTest(model, options, observer);
  ASSERT_TRUE(backend.ok()) << backend.status();
  ASSERT_GE((*backend)->info().max_predictions, 2);
  const std::span<const int32_t> next = std::span(tokens).subspan(1);
  const std::vector<float> oracle = ReadNpy(path.string() + ".mtp.npy").As<float>();
  int compared = 0;
  const auto expect_oracles = [&](const PartResult& part, int row) {
    const auto first = Likeliest(std::span(oracle).subspan(row * vocab, vocab));
    if (!first.has_value()) return;
    EXPECT_EQ(part.predictions[0], *first) << row;
    const std::span<const float> all = tap.hidden;
    (*predictor)->Run(next.first(row), all.first(row * hidden_size), 0);
    const Predictions of_row =
        (*predictor)->Run(next.subspan(row, 1), all.subspan(row * hidden_size, hidden_size), row);
    const Predictions further = (*predictor)->Run({&*first, 1}, of_row.hidden, row + 1);
    const auto second = Likeliest(further.logits);
    if (!second.has_value()) return;
    EXPECT_EQ(part.predictions[1], *second) << row;
    ++compared;
  };
  PredictAlong(**backend, tokens, model->spec().vocab, blocks, expect_oracles);
  EXPECT_GT(compared, 10);
}

// The recurrent state after 40 tokens, however they are cut into steps.
class GpuStateOracleTest : public GpuTest {};

TEST_F(GpuStateOracleTest, StatesAgree) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  constexpr int kTokens = 40;
  const std::string path = OracleDir() + "/hybrid/qwen35-mtp-F16";
  const std::vector<int32_t> tokens = ReadTokens(OracleDir() + "/hybrid/tokens.txt");
  const auto model = LoadModel(path + ".gguf", /*with_text=*/false);
  ASSERT_NE(model, nullptr);
  for (const int chunk : {kTokens, 1, 7}) {
    SCOPED_TRACE(chunk);
    const auto backend = BackendFor(model, kTokens);
    ASSERT_NE(backend, nullptr);
    TeacherForce(*backend, std::span(tokens).first(kTokens), BlocksOf(kTokens), chunk);
    ExpectOracleState(model->spec(), backend->RecurrentState(0), path + ".state40.npz", kNmse);
  }
}

// gpt-oss gets the YaRN of its makers, and not llama.cpp's, which rounds the ends of the ramp.
class GpuGptOssOracleTest : public GpuTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Files, GpuGptOssOracleTest,
                         ::testing::Values("arch/gpt-oss-F16", "arch/gpt-oss-MXFP4"),
                         OracleFileName);

TEST_P(GpuGptOssOracleTest, YarnIsItsMakers) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const std::string path = OracleDir() + "/" + GetParam();
  const auto model = LoadModel(path + ".gguf", /*with_text=*/false);
  ASSERT_NE(model, nullptr);
  const std::vector<float> logits = Logits(model, ReadTokens(OracleDir() + "/arch/tokens.txt"), 64);
  const auto nmse_to = [&](const std::string& file) {
    const std::vector<float> expected = ReadNpy(file).As<float>();
    EXPECT_EQ(logits.size(), expected.size());
    double squared = 0;
    double reference = 0;
    for (size_t i = 0; i < std::min(logits.size(), expected.size()); ++i) {
      squared += Square(double{logits[i]} - double{expected[i]});
      reference += Square(expected[i]);
    }
    return squared / reference;
  };
  const double makers = nmse_to(path + ".npy");
  const double rounded = nmse_to(path + ".llamacpp.npy");
  std::printf("%s: NMSE %.2e, to llama.cpp's %.2e\n", GetParam(), makers, rounded);
  EXPECT_LE(makers, kNmse);
  EXPECT_LT(makers, rounded);
}

// The least distance between the logits of a chosen expert and of one that is not.
class ChoiceMargin : public ActivationTap {
 public:
  explicit ChoiceMargin(const ModelSpec& spec) : spec_(spec) {}

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    if (point != TapPoint::kRouter) return;
    const int used = spec_.layers[layer].experts.used;
    for (int64_t row = 0; row < rows; ++row) {
      const auto logits = values.subspan(row * cols, cols);
      std::vector<float> sorted(logits.begin(), logits.end());
      std::ranges::sort(sorted, std::greater<>());
      least = std::min(least, sorted[used - 1] - sorted[used]);
    }
  }

  float least = std::numeric_limits<float>::infinity();

 private:
  const ModelSpec& spec_;
};

// Tokens whose experts no rounding to F16 changes, since another expert is another result.
std::vector<int32_t> TokensOfClearChoices(const std::shared_ptr<const Model>& model) {
  constexpr int kTokens = 40;
  constexpr float kClear = 0.02f;
  const auto backend = cpu::MakeTestBackend(model, cpu::SmallOptions());
  if (backend == nullptr) return {};
  for (int seed = 0; seed < 200; ++seed) {
    std::vector<int32_t> tokens = TestTokens(kTokens, seed);
    ChoiceMargin margin(model->spec());
    RunStep(*backend, {StartSequence(0, tokens, BlocksOf(kTokens))}, &margin);
    if (margin.least >= kClear) return tokens;
  }
  return {};
}

// Architectures with experts without another program's results, compared with the tests' own F64
// program.
class GpuMoeFileTest : public GpuTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Files, GpuMoeFileTest,
                         ::testing::Values("qwen2moe F16", "qwen2moe Q4_K_M", "granitemoe F16",
                                           "granitemoe Q4_K_M"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST_P(GpuMoeFileTest, LogitsAgree) {
  const std::string name = GetParam();
  const size_t space = name.find(' ');
  const auto model = cpu::NanoModel(name.substr(space + 1), name.substr(0, space));
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> tokens = TokensOfClearChoices(model);
  ASSERT_FALSE(tokens.empty());
  const std::vector<double> expected = cpu::PlainMoeFile(model->gguf()).Logits(tokens);
  const std::vector<float> rounded(expected.begin(), expected.end());
  for (const int chunk : {40, 1}) {
    ExpectAgreement(Logits(model, tokens, chunk), rounded, model->spec().vocab,
                    name + " in steps of " + std::to_string(chunk));
  }
}

struct RealModel {
  // The name by which tools/fetch-model knows the file.
  const char* name;
  // Folder of the expected results.
  const char* folder;
  // The variable that names the file, if it is not where tools/fetch-model puts it.
  const char* variable;
  size_t tokens;
  double nmse;
  double perplexity_tolerance;
};

void PrintTo(const RealModel& model, std::ostream* out) { *out << model.name; }

class GpuRealOracleTest : public GpuTest, public ::testing::WithParamInterface<RealModel> {
 protected:
  // Empty if the model's variable is not set and the file is not in the cache.
  static std::string ModelPath() {
    if (std::string asked = Variable(GetParam().variable); !asked.empty()) return asked;
    const std::string cache = Variable("ORCD_MODEL_CACHE");
    const std::string folder = cache.empty() ? Variable("HOME") + "/.cache/orcd/models" : cache;
    const std::string path = folder + "/" + GetParam().name + ".gguf";
    return std::ifstream(path) ? path : std::string();
  }
};

INSTANTIATE_TEST_SUITE_P(Models, GpuRealOracleTest,
                         ::testing::Values(RealModel{"qwen2.5-coder-0.5b-instruct-q4_k_m", "real",
                                                     "ORCD_REAL_MODEL", 273, 1e-5, 2e-4},
                                           RealModel{"smollm2-135m-instruct-q4_1", "real2",
                                                     "ORCD_SMOLLM2_MODEL", 207, 2e-5, 1e-3},
                                           RealModel{"gemma-3-270m-q4_k_m", "real2",
                                                     "ORCD_GEMMA3_MODEL", 164, 2e-5, 1e-3}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::ranges::replace_if(
                               name, [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

TEST_P(GpuRealOracleTest, LogitsAndPerplexityAgree) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const RealModel& real = GetParam();
  const std::string path = ModelPath();
  if (path.empty()) {
    GTEST_SKIP() << real.variable << " is not set, and " << real.name
                 << " is not where tools/fetch-model puts it";
  }
  auto oracle = ReadNpz(OracleDir() + "/" + real.folder + "/" + real.name + ".npz");
  const std::vector<int32_t> tokens = oracle["tokens"].As<int32_t>();
  const std::vector<int32_t> ids = oracle["ids"].As<int32_t>();
  const std::vector<float> expected = oracle["logits"].As<float>();
  const std::vector<double> nll = oracle["nll"].As<double>();
  const std::vector<double> margin = oracle["margin"].As<double>();
  ASSERT_EQ(oracle["ids"].type, "<i4");
  ASSERT_EQ(oracle["nll"].type, "<f8");
  ASSERT_EQ(tokens.size(), real.tokens);
  const size_t columns = ids.size() / tokens.size();
  ASSERT_EQ(columns, 2048u);

  const auto model = LoadModel(path, /*with_text=*/true);
  ASSERT_NE(model, nullptr);
  const size_t vocab = static_cast<size_t>(model->spec().vocab);
  const std::vector<float> logits = Logits(model, tokens, static_cast<int>(tokens.size()));
  ASSERT_EQ(logits.size(), tokens.size() * vocab);

  double squared = 0;
  double reference = 0;
  double nll_sum = 0;
  double expected_nll_sum = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const auto row = std::span(logits).subspan(t * vocab, vocab);
    double max_error = 0;
    for (size_t i = t * columns; i < (t + 1) * columns; ++i) {
      const double error = double{row[ids[i]]} - double{expected[i]};
      squared += Square(error);
      reference += Square(expected[i]);
      max_error = std::max(max_error, std::abs(error));
    }
    // The first id of each position is the likeliest. It must stay so unless the margin to the next
    // is within the error of both.
    const auto best = std::max_element(row.begin(), row.end());
    if (margin[t] > 2 * max_error) {
      EXPECT_EQ(best - row.begin(), ids[t * columns]) << "position " << t;
    }
    if (t + 1 == tokens.size()) continue;
    double sum = 0;
    for (const float logit : row) sum += std::exp(double{logit} - double{*best});
    nll_sum += double{*best} + std::log(sum) - double{row[tokens[t + 1]]};
    expected_nll_sum += nll[t];
  }
  const double count = static_cast<double>(tokens.size() - 1);
  const double perplexity = std::exp(nll_sum / count);
  const double expected_perplexity = std::exp(expected_nll_sum / count);
  std::printf("NMSE %.2e, perplexity %.6f, oracle %.6f\n", squared / reference, perplexity,
              expected_perplexity);
  EXPECT_NEAR(perplexity, expected_perplexity, real.perplexity_tolerance * expected_perplexity);
  EXPECT_LE(squared / reference, real.nmse);
}

}  // namespace
}  // namespace orcd::cuda
