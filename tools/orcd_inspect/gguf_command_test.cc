#include "tools/orcd_inspect/gguf_command.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/gguf/gguf_writer.h"
#include "testing/random_model/random_model.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string TestPath(const std::string& name) {
  return ::testing::TempDir() + "/gguf_command_test." + std::to_string(getpid()) + "." + name;
}

std::string Describe(const std::string& path) {
  const auto gguf = GgufReader::Open(path, AllowedTensorTypes::kSized);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  return gguf.ok() ? DescribeGguf(**gguf) : "";
}

TEST(DescribeGgufTest, ShowsAModel) {
  ASSERT_TRUE(WriteRandomModel({.type = "Q4_K_M"}, TestPath("model")).ok());
  const std::string text = Describe(TestPath("model"));
  EXPECT_THAT(text, HasSubstr("GGUF version 3"));
  EXPECT_THAT(text, HasSubstr("\"qwen2\""));
  EXPECT_THAT(text, HasSubstr("string × 1024"));
  EXPECT_THAT(text, HasSubstr("[\"!\", \"\\\"\", \"#\""));
  EXPECT_THAT(text, HasSubstr("… (2507 bytes)"));
  EXPECT_THAT(text, HasSubstr("blk.1.ffn_down.weight"));
  EXPECT_THAT(text, HasSubstr("[768, 256]"));
  EXPECT_THAT(text, HasSubstr("11 F32"));
  EXPECT_THAT(text, HasSubstr("bits a weight"));
}

TEST(DescribeGgufTest, ShowsWhatCannotBeRun) {
  GgufWriter writer;
  writer.SetString("general.architecture", "mamba");
  writer.AddTensor("x", static_cast<TensorType>(23), std::vector<uint64_t>{512, 2});
  auto file = writer.CreateFile(TestPath("other"));
  ASSERT_TRUE(file.ok() && file->Finish().ok());
  const std::string text = Describe(TestPath("other"));
  EXPECT_THAT(text, HasSubstr("mamba"));
  EXPECT_THAT(text, HasSubstr("1 IQ4_XS; 1024 weights in 544 B, 4.25 bits a weight"));
}

TEST(DescribeGgufTest, EscapesWhatATerminalWouldObey) {
  GgufWriter writer;
  writer.SetString("evil\x1b[2J", "\x1b]0;title\x07 \xff");
  auto file = writer.CreateFile(TestPath("evil"));
  ASSERT_TRUE(file.ok() && file->Finish().ok());
  const std::string text = Describe(TestPath("evil"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\xff")));
  EXPECT_THAT(text, HasSubstr("\\033]0;title"));
}

TEST(DescribeGgufTest, DoesNotCutCharactersInHalf) {
  GgufWriter writer;
  std::string text(71, 'a');
  writer.SetString("key", text + "é" + text);
  auto file = writer.CreateFile(TestPath("cut"));
  ASSERT_TRUE(file.ok() && file->Finish().ok());
  EXPECT_THAT(Describe(TestPath("cut")), HasSubstr("\"" + text + "\"… (144 bytes)"));
}

}  // namespace
}  // namespace orcd
