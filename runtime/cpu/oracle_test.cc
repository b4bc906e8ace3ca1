// Compares the whole model with logits that another program computed in F64.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/cpu/predictor.h"
#include "testing/numpy.h"
#include "testing/oracle_predictions.h"
#include "testing/oracle_state.h"
#include "testing/same_bits.h"

namespace orcd::cpu {
namespace {

double NmseBound(KvType type) { return type == KvType::kF32 ? 1e-9 : 1e-5; }
double PerplexityTolerance(KvType type) { return type == KvType::kF32 ? 1e-5 : 1e-4; }
std::string KvName(KvType type) { return type == KvType::kF32 ? "f32" : "f16"; }

std::string OracleDir() {
  const char* dir = std::getenv("ORCD_ORACLE_DIR");
  return dir == nullptr ? std::string() : dir;
}

// The place in which tools/fetch-model puts a model.
std::string RealModelPath(const std::string& name) {
  if (const char* cache = std::getenv("ORCD_MODEL_CACHE")) {
    return std::string(cache) + "/" + name + ".gguf";
  }
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "" : home) + "/.cache/orcd/models/" + name + ".gguf";
}

std::vector<int32_t> ReadTokens(const std::string& path) {
  std::ifstream file(path);
  std::vector<int32_t> tokens;
  for (int32_t token; file >> token;) tokens.push_back(token);
  return tokens;
}

// For one sequence of `count` tokens.
BackendOptions OptionsFor(int count, KvType kv_type) {
  BackendOptions options;
  options.max_seqs = 1;
  options.max_step_tokens = count;
  // The oracle takes LongRoPE's factors for as many positions as there are tokens.
  options.max_context = count;
  options.kv_cache_bytes = int64_t{64} << 20;
  options.kv_type = kv_type;
  return options;
}

std::unique_ptr<Backend> BackendFor(const std::shared_ptr<const Model>& model, int count,
                                    KvType kv_type) {
  return MakeTestBackend(model, OptionsFor(count, kv_type));
}

std::vector<int32_t> BlocksFor(const Backend& backend, size_t count) {
  const int block_tokens = backend.info().block_tokens;
  return BlockRange(0, (static_cast<int>(count) + block_tokens - 1) / block_tokens);
}

// Logits after each token, in steps of `chunk` tokens.
std::vector<float> Logits(const std::shared_ptr<const Model>& model,
                          std::span<const int32_t> tokens, KvType kv_type, int chunk) {
  auto backend = BackendFor(model, static_cast<int>(tokens.size()), kv_type);
  return TeacherForce(*backend, tokens, BlocksFor(*backend, tokens.size()), chunk);
}

struct Errors {
  double squared = 0;
  double reference = 0;
  double Nmse() const { return squared / reference; }
};

double Square(double x) { return x * x; }

// A model's path in the oracle's folder, without `.gguf`; the tokens lie beside it.
using FileParam = std::tuple<std::string, KvType>;
std::string FileName(const ::testing::TestParamInfo<FileParam>& info) {
  const auto& [file, kv_type] = info.param;
  std::string name = std::filesystem::path(file).filename().string() + "_kv_" + KvName(kv_type);
  std::ranges::replace(name, '-', '_');
  return name;
}

class FileOracleTest : public ::testing::TestWithParam<FileParam> {
 protected:
  // `what` names the property under which the error is recorded.
  void ExpectAgreement(std::span<const float> actual, std::span<const float> expected,
                       int64_t vocab, const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size());
    Errors errors;
    for (size_t i = 0; i < expected.size(); ++i) {
      errors.squared += Square(double{actual[i]} - double{expected[i]});
      errors.reference += Square(expected[i]);
    }
    EXPECT_LE(errors.Nmse(), NmseBound(std::get<KvType>(GetParam()))) << what;
    std::printf("NMSE %s %.2e\n", what.c_str(), errors.Nmse());
    RecordProperty("nmse_" + what, absl::StrCat(errors.Nmse()));
    for (size_t row = 0; row < expected.size(); row += vocab) {
      const auto want = expected.subspan(row, vocab);
      const auto have = actual.subspan(row, vocab);
      double error = 0;
      for (int64_t i = 0; i < vocab; ++i) {
        error = std::max(error, std::abs(double{have[i]} - double{want[i]}));
      }
      std::vector<float> sorted(want.begin(), want.end());
      std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
      if (double{sorted[0]} - double{sorted[1]} <= error) continue;
      EXPECT_EQ(std::max_element(have.begin(), have.end()) - have.begin(),
                std::max_element(want.begin(), want.end()) - want.begin())
          << what << " token " << row / vocab;
    }
  }
};

TEST_P(FileOracleTest, LogitsAgree) {
  const auto& [file, kv_type] = GetParam();
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const std::filesystem::path path = std::filesystem::path(OracleDir()) / file;
  const std::vector<int32_t> tokens = ReadTokens(path.parent_path() / "tokens.txt");
  const NumpyArray oracle = ReadNpy(path.string() + ".npy");
  ASSERT_EQ(oracle.type, "<f4");
  ASSERT_EQ(oracle.shape.size(), 2u);
  ASSERT_EQ(oracle.shape[0], static_cast<int64_t>(tokens.size()));
  const std::vector<float> expected = oracle.As<float>();
  // The files' tokenizers are made up; only the weights mean something.
  const auto model = LoadTestModel(path.string() + ".gguf", /*with_text=*/false);
  ASSERT_NE(model, nullptr);
  ASSERT_EQ(oracle.shape[1], model->spec().vocab);
  const int64_t vocab = oracle.shape[1];
  const std::vector<float> whole = Logits(model, tokens, kv_type, static_cast<int>(tokens.size()));
  ExpectAgreement(whole, expected, vocab, "whole");
  ExpectAgreement(Logits(model, tokens, kv_type, 1), expected, vocab, "by_token");
  if (!model->spec().recurrent()) return;
  for (const int chunk : {7, 37}) {
    EXPECT_TRUE(SameBits(Logits(model, tokens, kv_type, chunk), whole)) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Nano, FileOracleTest,
    ::testing::Combine(::testing::Values("logits/nano-F16", "logits/nano-BF16", "logits/nano-Q8_0",
                                         "logits/nano-Q6_K", "logits/nano-Q5_K_M",
                                         "logits/nano-Q5_1", "logits/nano-Q5_0",
                                         "logits/nano-Q4_K_M", "logits/nano-Q4_1",
                                         "logits/nano-Q4_0", "logits/nano-Q3_K_M",
                                         "logits/nano-Q2_K"),
                       ::testing::Values(KvType::kF32, KvType::kF16)),
    FileName);

INSTANTIATE_TEST_SUITE_P(
    Architectures, FileOracleTest,
    ::testing::Combine(
        ::testing::Values("arch/llama3-F16", "arch/llama3-Q4_K_M", "arch/llama3-tied-F16",
                          "arch/mistral-F16", "arch/mistral-Q4_K_M", "arch/qwen3-F16",
                          "arch/qwen3-Q4_K_M", "arch/gemma2-F16", "arch/gemma2-Q4_K_M",
                          "arch/gemma3-F16", "arch/gemma3-Q4_0", "arch/phi3-F16",
                          "arch/phi3-longrope-Q4_K_M", "arch/granite-F16", "arch/granite-Q4_K_M",
                          "arch/olmo2-F16", "arch/olmo2-Q4_K_M", "arch/glm4-F16",
                          "arch/glm4-Q4_K_M", "arch2/mistral3-F16", "arch2/mistral3-Q4_K_M",
                          "arch2/seed_oss-F16", "arch2/smollm3-F16", "arch2/cohere2-F16",
                          "arch/qwen3moe-F16", "arch/qwen3moe-Q4_K_M", "arch/mixtral-F16",
                          "arch/mixtral-Q4_0", "arch/gpt-oss-F16", "arch/gpt-oss-MXFP4",
                          "arch2/glm4moe-mtp-F16", "arch2/glm4moe-Q4_K_M"),
        ::testing::Values(KvType::kF32, KvType::kF16)),
    FileName);

INSTANTIATE_TEST_SUITE_P(
    Hybrids, FileOracleTest,
    ::testing::Combine(::testing::Values("hybrid/qwen35-Q4_K_M", "hybrid/qwen35-mtp-F16",
                                         "hybrid/qwen35moe-F16", "hybrid/qwen35moe-IQ4_XS",
                                         "hybrid/qwen3next-Q4_K_M", "hybrid/qwen3next-Q8_0"),
                       ::testing::Values(KvType::kF32, KvType::kF16)),
    FileName);

// The state after 40 tokens, however they are cut into steps.
TEST(HybridOracleTest, StatesAgree) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  constexpr int kTokens = 40;
  const std::string path = OracleDir() + "/hybrid/qwen35-mtp-F16";
  const std::vector<int32_t> tokens = ReadTokens(OracleDir() + "/hybrid/tokens.txt");
  const auto model = LoadTestModel(path + ".gguf", /*with_text=*/false);
  ASSERT_NE(model, nullptr);
  for (const int chunk : {kTokens, 1, 7}) {
    SCOPED_TRACE(chunk);
    auto backend = BackendFor(model, static_cast<int>(tokens.size()), KvType::kF32);
    TeacherForce(*backend, std::span(tokens).first(kTokens), BlocksFor(*backend, tokens.size()),
                 chunk);
    ExpectOracleState(model->spec(), backend->RecurrentState(0), path + ".state40.npz",
                      NmseBound(KvType::kF32));
  }
}

// The NMSE of the rows from `first_row` on of an oracle's file.
double NmseOfRows(std::span<const float> actual, const NumpyArray& oracle, int64_t first_row = 0) {
  const std::vector<float> expected = oracle.As<float>();
  const int64_t offset = first_row * oracle.shape.at(1);
  EXPECT_LE(offset + std::ssize(actual), std::ssize(expected));
  Errors errors;
  for (size_t i = 0; i < actual.size(); ++i) {
    errors.squared += Square(double{actual[i]} - double{expected[offset + i]});
    errors.reference += Square(expected[offset + i]);
  }
  return errors.Nmse();
}

struct PredictFile {
  const char* name;
  // True if there are second predictions.
  bool chain;
};

class PredictOracleTest : public ::testing::TestWithParam<PredictFile> {
 protected:
  void SetUp() override {
    if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
    path_ = OracleDir() + "/" + GetParam().name;
    tokens_ = ReadTokens(std::filesystem::path(path_).parent_path() / "tokens.txt");
    const auto count = static_cast<int>(tokens_.size());
    model_ = LoadTestModel(path_ + ".gguf", /*with_text=*/false);
    ASSERT_NE(model_, nullptr);
    BackendOptions options = OptionsFor(count, KvType::kF32);
    options.predict = true;
    backend_ = MakeTestBackend(model_, options);
    ASSERT_NE(backend_, nullptr);
    blocks_ = BlocksFor(*backend_, tokens_.size());
    RunStep(*backend_, {StartSequence(0, tokens_, blocks_)}, &tap_);
    auto predictor = CreateCpuPredictor(model_, KvType::kF32, count, 2);
    ASSERT_TRUE(predictor.ok()) << predictor.status();
    ASSERT_NE(*predictor, nullptr);
    predictor_ = *std::move(predictor);
  }

  // The inputs of the head for `count` tokens from `first` on.
  std::span<const float> Hidden(int64_t first, int64_t count) const {
    const int64_t size = model_->spec().hidden;
    return std::span(tap_.hidden).subspan(first * size, count * size);
  }

  std::string path_;
  std::vector<int32_t> tokens_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> backend_;
  std::vector<int32_t> blocks_;
  HiddenTap tap_;
  std::unique_ptr<Predictor> predictor_;
};

INSTANTIATE_TEST_SUITE_P(Files, PredictOracleTest,
                         ::testing::Values(PredictFile{"hybrid/qwen35-mtp-F16", true},
                                           PredictFile{"arch2/glm4moe-mtp-F16", false}));

// The first predictions of all rows at once, and the second ones, each from the block's own hidden
// state, whose keys and values the next true row replaces.
TEST_P(PredictOracleTest, PredictionsAgree) {
  const std::span<const int32_t> next = std::span(tokens_).subspan(1);
  const Predictions all = predictor_->Run(next, Hidden(0, std::ssize(next)), 0);
  const double first = NmseOfRows(all.logits, ReadNpy(path_ + ".mtp.npy"));
  EXPECT_LE(first, NmseBound(KvType::kF32));
  std::printf("NMSE of predictions %.2e\n", first);
  if (!GetParam().chain) return;
  const NumpyArray second = ReadNpy(path_ + ".mtp2.npy");
  std::vector<float> chained;
  for (int64_t p = 0; p < second.shape.at(0); ++p) {
    const Predictions row = predictor_->Run(next.subspan(p, 1), Hidden(p, 1), p);
    const Predictions further = predictor_->Run(next.subspan(p + 1, 1), row.hidden, p + 1);
    chained.insert(chained.end(), further.logits.begin(), further.logits.end());
  }
  const double nmse = NmseOfRows(chained, second);
  EXPECT_LE(nmse, NmseBound(KvType::kF32));
  std::printf("NMSE of second predictions %.2e\n", nmse);
}

size_t Likeliest(std::span<const float> logits) {
  return static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
}

// The first of two predicted tokens is the oracle's, and the second follows from the first.
TEST_P(PredictOracleTest, StepsPredictTheSame) {
  ASSERT_GE(backend_->info().max_predictions, 2);
  const auto vocab = static_cast<size_t>(model_->spec().vocab);
  const std::span<const int32_t> next = std::span(tokens_).subspan(1);
  const std::vector<float> oracle = ReadNpy(path_ + ".mtp.npy").As<float>();
  const auto expect_oracles = [&](const PartResult& part, int row) {
    predictor_->Run(next.first(row), Hidden(0, row), 0);
    const Predictions first = predictor_->Run(next.subspan(row, 1), Hidden(row, 1), row);
    const Predictions second =
        predictor_->Run(std::span(part.predictions).first(1), first.hidden, row + 1);
    EXPECT_EQ(part.predictions[0], Likeliest(std::span(oracle).subspan(row * vocab, vocab))) << row;
    EXPECT_EQ(part.predictions[1], Likeliest(second.logits)) << row;
  };
  PredictAlong(*backend_, tokens_, model_->spec().vocab, blocks_, expect_oracles);
}

// gpt-oss gets the YaRN of its makers, and not llama.cpp's, which rounds the ends of the ramp.
TEST(GptOssOracleTest, YarnIsItsMakers) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  for (const char* name : {"gpt-oss-F16", "gpt-oss-MXFP4"}) {
    const std::string path = OracleDir() + "/arch/" + name;
    const auto model = LoadTestModel(path + ".gguf", /*with_text=*/false);
    ASSERT_NE(model, nullptr);
    const std::vector<float> logits =
        Logits(model, ReadTokens(OracleDir() + "/arch/tokens.txt"), KvType::kF32, 64);
    const auto nmse_of = [&](const std::string& file) {
      const std::vector<float> expected = ReadNpy(file).As<float>();
      EXPECT_EQ(logits.size(), expected.size());
      Errors errors;
      for (size_t i = 0; i < std::min(logits.size(), expected.size()); ++i) {
        errors.squared += Square(double{logits[i]} - double{expected[i]});
        errors.reference += Square(expected[i]);
      }
      return errors.Nmse();
    };
    const double makers = nmse_of(path + ".npy");
    const double rounded = nmse_of(path + ".llamacpp.npy");
    EXPECT_LE(makers, NmseBound(KvType::kF32)) << name;
    EXPECT_LT(makers, rounded) << name;
    std::printf("NMSE %s %.2e, to llama.cpp's %.2e\n", name, makers, rounded);
  }
}

struct RealModel {
  // Name under which tools/fetch-model knows the file.
  const char* name;
  // Folder of the expected results.
  const char* folder;
  size_t tokens;
  double perplexity;
};

constexpr RealModel kQwen = {"qwen2.5-coder-0.5b-instruct-q4_k_m", "real", 273, 38.371506};
constexpr RealModel kSmolLm2 = {"smollm2-135m-instruct-q4_1", "real2", 207, 19.493149};
constexpr RealModel kGemma3 = {"gemma-3-270m-q4_k_m", "real2", 164, 27.398895};

using RealParam = std::tuple<RealModel, KvType>;
class RealOracleTest : public ::testing::TestWithParam<RealParam> {};

TEST_P(RealOracleTest, LogitsAndPerplexityAgree) {
  if (OracleDir().empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const auto& [real, kv_type] = GetParam();
  const std::string path = RealModelPath(real.name);
  if (!std::ifstream(path)) {
    GTEST_SKIP() << path << " is not there; fetch it with tools/fetch-model " << real.name;
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

  const auto model = LoadTestModel(path);
  ASSERT_NE(model, nullptr);
  const size_t vocab = static_cast<size_t>(model->spec().vocab);
  const std::vector<float> logits = Logits(model, tokens, kv_type, static_cast<int>(tokens.size()));
  ASSERT_EQ(logits.size(), tokens.size() * vocab);

  Errors errors;
  double nll_sum = 0;
  double expected_nll_sum = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const auto row = std::span(logits).subspan(t * vocab, vocab);
    double max_error = 0;
    for (size_t i = t * columns; i < (t + 1) * columns; ++i) {
      const double error = double{row[ids[i]]} - double{expected[i]};
      errors.squared += Square(error);
      errors.reference += Square(expected[i]);
      max_error = std::max(max_error, std::abs(error));
    }
    // The first id of each position is the likeliest.
    const auto best = std::max_element(row.begin(), row.end());
    if (margin[t] > max_error) {
      EXPECT_EQ(best - row.begin(), ids[t * columns]) << "position " << t;
    }
    if (t + 1 == tokens.size()) continue;
    double sum = 0;
    for (float logit : row) sum += std::exp(double{logit} - double{*best});
    nll_sum += double{*best} + std::log(sum) - double{row[tokens[t + 1]]};
    expected_nll_sum += nll[t];
  }
  const double count = static_cast<double>(tokens.size() - 1);
  const double perplexity = std::exp(nll_sum / count);
  const double expected_perplexity = std::exp(expected_nll_sum / count);
  EXPECT_NEAR(expected_perplexity, real.perplexity, 1e-5);
  EXPECT_NEAR(perplexity, expected_perplexity, PerplexityTolerance(kv_type) * expected_perplexity);
  EXPECT_LE(errors.Nmse(), NmseBound(kv_type));
  std::printf("NMSE %.2e, perplexity %.6f, oracle %.6f\n", errors.Nmse(), perplexity,
              expected_perplexity);
  RecordProperty("nmse", absl::StrCat(errors.Nmse()));
}

std::string RealName(const ::testing::TestParamInfo<RealParam>& info) {
  const auto& [real, kv_type] = info.param;
  std::string name = std::string(real.name) + "_kv_" + KvName(kv_type);
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, RealOracleTest,
                         ::testing::Values(RealParam{kQwen, KvType::kF32},
                                           RealParam{kQwen, KvType::kF16},
                                           RealParam{kSmolLm2, KvType::kF32},
                                           RealParam{kGemma3, KvType::kF32}),
                         RealName);

}  // namespace
}  // namespace orcd::cpu
