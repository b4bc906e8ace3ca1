#include "tools/orcd_inspect/check_command.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/architecture_models.h"
#include "testing/random_model/random_model.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

struct Result {
  int exit_code = -1;
  std::string output;
  std::string errors;
};

Result Check(const std::string& path) {
  CLI::App app;
  Result result;
  AddCheckCommand(app, result.exit_code);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  app.parse("check " + path);
  result.output = ::testing::internal::GetCapturedStdout();
  result.errors = ::testing::internal::GetCapturedStderr();
  return result;
}

std::string WriteModel(const std::string& name) {
  const auto path =
      WriteRandomModel({.type = "Q4_K_M"}, ::testing::TempDir() + "/check_command_test." +
                                               std::to_string(getpid()) + "." + name);
  EXPECT_TRUE(path.ok()) << path.status();
  return *path;
}

TEST(CheckCommandTest, AcceptsWhatLoadAccepts) {
  const Result result = Check(WriteModel("good"));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("OK: random-qwen2-nano, qwen2, 2 layers"));
  EXPECT_THAT(result.output, HasSubstr("sha256-tree:"));
  EXPECT_THAT(result.output, HasSubstr("chat supported: yes"));
}

TEST(CheckCommandTest, ScalesRopeAsTheWorkersFlagDoes) {
  const std::string path = WriteModel("scaled");
  const Result result = Check(path + " --rope-scaling yarn:4");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("context 131072"));
}

TEST(CheckCommandTest, SaysWhyAFileHasNoChat) {
  const auto path = WriteRandomModel(
      {.chat_template = "{{ messages"},
      ::testing::TempDir() + "/check_command_test." + std::to_string(getpid()) + ".no_chat");
  ASSERT_TRUE(path.ok()) << path.status();
  const Result result = Check(*path);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("chat supported: no"));
  EXPECT_THAT(result.output, HasSubstr("warning: "));
}

TEST(CheckCommandTest, SaysWhatLoadRefuses) {
  const std::string path = WriteModel("cut");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1000);
  const Result result = Check(path);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output, "");
  EXPECT_THAT(result.errors, HasSubstr(path + ": tensor \"blk.1.ffn_up.weight\""));
  EXPECT_THAT(result.errors, HasSubstr("[GGUF_TRUNCATED]"));
}

TEST(CheckCommandTest, TellsOfExpertsAndOfLayersThatAreLeftOut) {
  const auto path = WriteRandomModel(
      {.architecture = "glm4moe", .type = "Q8_0"},
      ::testing::TempDir() + "/check_command_test." + std::to_string(getpid()) + ".experts");
  ASSERT_TRUE(path.ok()) << path.status();
  const Result result = Check(*path);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("glm4moe, 3 layers"));
  EXPECT_THAT(result.output,
              HasSubstr("experts: 2 of 8 in 2 layers, width 256, and a shared one of 256\n"));
  EXPECT_THAT(result.output, HasSubstr("left out: 1 layer that predicts further tokens; --draft "
                                       "mtp can use it\n"));
}

TEST(CheckCommandTest, TellsOfEveryCause) {
  TestModel model = TinyModelOf("llama");
  model.keys["llama.attention.causal"] = false;
  model.keys["tokenizer.ggml.model"] = "wordpiece";
  // Q8_1, which is not read here.
  model.tensors["blk.0.attn_q.weight"].type = static_cast<TensorType>(9);
  const std::string path =
      ::testing::TempDir() + "/check_command_test." + std::to_string(getpid()) + ".causes";
  model.Write(path);
  const Result result = Check(path);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("Q8_1"));
  EXPECT_THAT(result.errors, HasSubstr("llama.attention.causal"));
  EXPECT_THAT(result.errors, HasSubstr("wordpiece"));
}

}  // namespace
}  // namespace orcd
