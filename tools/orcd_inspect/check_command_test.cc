#include "tools/orcd_inspect/check_command.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace orcd
