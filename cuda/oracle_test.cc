// Compares the whole model on the GPU with logits that another program computed in F64 and stored
// in $ORCD_ORACLE_DIR. The real model is $ORCD_REAL_MODEL, or lies where tools/fetch-model puts it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/gpu_for_test.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/model/model.h"
#include "testing/numpy.h"

namespace orcd::cuda {
namespace {

using cpu::NumpyArray;
using cpu::ReadNpy;
using cpu::ReadNpz;

constexpr char kRealModel[] = "qwen2.5-coder-0.5b-instruct-q4_k_m";
constexpr double kNmse = 1e-5;
constexpr double kPerplexityTolerance = 2e-4;

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

// Logits, [tokens, vocab], of tokens that run in steps of `chunk`.
std::vector<float> Logits(const std::shared_ptr<const Model>& model,
                          std::span<const int32_t> tokens, int chunk) {
  BackendOptions options;
  options.max_seqs = 1;
  options.max_step_tokens = static_cast<int>(tokens.size());
  options.kv_cache_bytes = int64_t{64} << 20;
  NullLoadObserver observer;
  auto backend = CreateCudaBackend(model, options, observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  if (!backend.ok()) return {};
  const auto blocks = BlockRange(0, static_cast<int>(tokens.size()) / 16 + 1);
  return TeacherForce(**backend, tokens, blocks, chunk);
}

std::shared_ptr<const Model> LoadModel(const std::string& path, bool with_text) {
  NullLoadObserver observer;
  auto model = Model::Load(path, {.with_text = with_text}, observer);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

double Square(double x) { return x * x; }

class GpuNanoOracleTest : public GpuTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, GpuNanoOracleTest,
                         ::testing::Values("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0",
                                           "Q4_K_M", "Q4_1", "Q4_0", "Q3_K_M", "Q2_K"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(GpuNanoOracleTest, LogitsAgree) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const std::string dir = OracleDir() + "/logits/";
  const std::vector<int32_t> tokens = ReadTokens(dir + "tokens.txt");
  const NumpyArray oracle = ReadNpy(dir + "nano-" + GetParam() + ".npy");
  ASSERT_EQ(oracle.type, "<f4");
  ASSERT_EQ(oracle.shape, (std::vector<int64_t>{64, 1024}));
  const std::vector<float> expected = oracle.As<float>();
  // The files' tokenizer is made up; only the weights mean something.
  const auto model = LoadModel(dir + "nano-" + GetParam() + ".gguf", /*with_text=*/false);
  ASSERT_NE(model, nullptr);
  // One step of all tokens, and steps of a single token.
  for (const int chunk : {64, 1}) {
    const std::vector<float> actual = Logits(model, tokens, chunk);
    ASSERT_EQ(actual.size(), expected.size());
    double squared = 0;
    double reference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      squared += Square(double{actual[i]} - double{expected[i]});
      reference += Square(expected[i]);
    }
    std::printf("%s in steps of %d: NMSE %.2e\n", GetParam(), chunk, squared / reference);
    EXPECT_LE(squared / reference, kNmse);
  }
}

class GpuRealOracleTest : public GpuTest {
 protected:
  // Empty if ORCD_REAL_MODEL is not set and the file is not in the cache.
  static std::string ModelPath() {
    if (std::string asked = Variable("ORCD_REAL_MODEL"); !asked.empty()) return asked;
    const std::string cache = Variable("ORCD_MODEL_CACHE");
    const std::string folder = cache.empty() ? Variable("HOME") + "/.cache/orcd/models" : cache;
    const std::string path = folder + "/" + kRealModel + ".gguf";
    return std::ifstream(path) ? path : std::string();
  }
};

TEST_F(GpuRealOracleTest, LogitsAndPerplexityAgree) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const std::string path = ModelPath();
  if (path.empty()) {
    GTEST_SKIP() << "ORCD_REAL_MODEL is not set, and " << kRealModel
                 << " is not where tools/fetch-model puts it";
  }
  auto oracle = ReadNpz(OracleDir() + "/real/" + kRealModel + ".npz");
  const std::vector<int32_t> tokens = oracle["tokens"].As<int32_t>();
  const std::vector<int32_t> ids = oracle["ids"].As<int32_t>();
  const std::vector<float> expected = oracle["logits"].As<float>();
  const std::vector<double> nll = oracle["nll"].As<double>();
  const std::vector<double> margin = oracle["margin"].As<double>();
  ASSERT_EQ(oracle["ids"].type, "<i4");
  ASSERT_EQ(oracle["nll"].type, "<f8");
  ASSERT_EQ(tokens.size(), 273u);
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
  EXPECT_NEAR(perplexity, expected_perplexity, kPerplexityTolerance * expected_perplexity);
  EXPECT_LE(squared / reference, kNmse);
}

}  // namespace
}  // namespace orcd::cuda
