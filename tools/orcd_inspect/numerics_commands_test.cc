// Runs `logits` and `layers` as a person would, on a model of random weights.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gtest/gtest.h"
#include "testing/files.h"
#include "testing/random_model/model_shapes.h"
#include "testing/random_model/random_model.h"
#include "testing/same_bits.h"
#include "tools/orcd_inspect/layers_command.h"
#include "tools/orcd_inspect/logits_command.h"

namespace orcd {
namespace {

class NumericsCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteModel({.size = "nano", .type = "Q4_K_M", .threads = 1});
    WriteTokens("1 2 3\n500 999 7 8 9 10 11 12 13 14 15 16 17\n");
  }

  void WriteModel(const RandomModelOptions& options) {
    auto written = WriteRandomModel(options, model_);
    ASSERT_TRUE(written.ok()) << written.status();
  }
  void WriteTokens(const std::string& text) { std::ofstream(tokens_) << text; }

  // Returns the exit code; output goes to the test's output.
  int Run(std::vector<std::string> args) {
    CLI::App app("test");
    int exit_code = 0;
    AddLogitsCommand(app, exit_code);
    AddLayersCommand(app, exit_code);
    std::reverse(args.begin(), args.end());
    try {
      app.parse(args);
    } catch (const CLI::ParseError& error) {
      return error.get_exit_code();
    }
    return exit_code;
  }

  std::vector<float> Logits(const std::string& kv, const std::string& step_tokens = "64") {
    EXPECT_EQ(Run({"logits", "--model", model_, "--tokens", tokens_, "--out", out_, "--kv", kv,
                   "--step-tokens", step_tokens}),
              0);
    const std::string bytes = ReadFile(out_);
    constexpr size_t kHeader = 128;
    EXPECT_GT(bytes.size(), kHeader);
    std::vector<float> values((bytes.size() - kHeader) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + kHeader, values.size() * sizeof(float));
    return values;
  }

  const TempDir dir_;
  const std::string model_ = dir_.File("model.gguf");
  const std::string tokens_ = dir_.File("tokens.txt");
  const std::string out_ = dir_.File("out.npy");
};

TEST_F(NumericsCommandsTest, LogitsOfEveryToken) {
  const std::vector<float> f16 = Logits("f16");
  const std::vector<float> f32 = Logits("f32");
  ASSERT_EQ(f16.size(), f32.size());
  ASSERT_EQ(f16.size() % 16, 0u);
  double error = 0;
  double reference = 0;
  for (size_t i = 0; i < f16.size(); ++i) {
    error += std::pow(double{f16[i]} - double{f32[i]}, 2);
    reference += std::pow(double{f32[i]}, 2);
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(error / reference, 1e-4);
}

TEST_F(NumericsCommandsTest, LayersPassesFailsAndRefuses) {
  const std::vector<std::string> layers = {"layers", "--model", model_, "--tokens", tokens_, "--a"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> args = layers;
    args.insert(args.end(), more.begin(), more.end());
    return Run(args);
  };
  EXPECT_EQ(with({"cpu", "--b", "cpu", "--tolerance", "0"}), 0);
  EXPECT_EQ(with({"cpu", "--b", "cpu-f32kv"}), 0);
  EXPECT_EQ(with({"cpu", "--b", "cpu-f32kv", "--tolerance", "1e-12"}), 2);
  EXPECT_NE(with({"cpu", "--b", "abacus"}), 0);
}

// More tokens than the cache of windows holds at once.
TEST_F(NumericsCommandsTest, BlocksOfWindowsAreUsedInTurn) {
  WriteModel({.architecture = "gemma3", .size = "nano", .type = "Q8_0", .threads = 1});
  std::string text;
  for (int i = 0; i < 300; ++i) text += std::to_string(i * 617 % 1000) + " ";
  WriteTokens(text);
  const std::vector<float> whole = Logits("f16", "300");
  for (const char* step_tokens : {"1", "50"}) {
    EXPECT_TRUE(SameBits(Logits("f16", step_tokens), whole)) << step_tokens;
  }
}

TEST_F(NumericsCommandsTest, LayersOfEveryArchitecture) {
  for (const std::string& architecture : ModelShapeArchitectures()) {
    WriteModel({.architecture = architecture, .size = "nano", .type = "Q8_0", .threads = 1});
    EXPECT_EQ(Run({"layers", "--model", model_, "--tokens", tokens_, "--a", "cpu", "--b",
                   "cpu-f32kv", "--step-tokens", "7"}),
              0)
        << architecture;
  }
}

TEST_F(NumericsCommandsTest, StateAfterSomeTokens) {
  const std::string state = dir_.File("state.npy");
  const auto run = [&](const char* after, const char* step_tokens) {
    unlink(state.c_str());
    return Run({"logits", "--model", model_, "--tokens", tokens_, "--out", out_, "--step-tokens",
                step_tokens, "--state-after", after, state});
  };
  EXPECT_EQ(run("9", "64"), 1) << "a model without recurrent layers";
  WriteModel({.architecture = "qwen35", .size = "nano", .type = "Q8_0", .threads = 1});
  for (const char* after : {"0", "17", "-1"}) EXPECT_EQ(run(after, "64"), 1) << after;
  ASSERT_EQ(run("9", "64"), 0);
  const std::string whole = ReadFile(state);
  // Two layers: 3 inputs of 1024 channels and 4 matrices.
  EXPECT_EQ(whole.size(), 128 + sizeof(float) * 2 * (3 * 1024 + 4 * 128 * 128));
  ASSERT_EQ(run("9", "4"), 0);
  EXPECT_EQ(ReadFile(state), whole);
  ASSERT_EQ(run("16", "64"), 0);
  EXPECT_NE(ReadFile(state), whole);
}

TEST_F(NumericsCommandsTest, PredictionsOfFurtherTokens) {
  const std::string mtp = dir_.File("mtp.npy");
  const std::vector<std::string> args = {"logits", "--model", model_,  "--tokens", tokens_,
                                         "--out",  out_,      "--mtp", mtp};
  EXPECT_EQ(Run(args), 1) << "a file without the block";
  for (const char* architecture : {"qwen35", "glm4moe"}) {
    WriteModel({.architecture = architecture, .size = "nano", .type = "Q8_0", .threads = 1});
    unlink(mtp.c_str());
    EXPECT_EQ(Run(args), 0) << architecture;
    EXPECT_EQ(ReadFile(mtp).size(), 128 + sizeof(float) * 15 * 1024) << architecture;
  }
}

TEST_F(NumericsCommandsTest, TokensThatCannotBeRun) {
  for (const char* text : {"", "1 two 3", "-1", "99999999"}) {
    WriteTokens(text);
    EXPECT_EQ(Run({"logits", "--model", model_, "--tokens", tokens_, "--out", out_}), 1) << text;
  }
  unlink(tokens_.c_str());
  EXPECT_EQ(Run({"logits", "--model", model_, "--tokens", tokens_, "--out", out_}), 1);
}

}  // namespace
}  // namespace orcd
