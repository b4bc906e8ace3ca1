#include "tools/orcd_inspect/tokenize_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/tokenizer.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

class TokenizeCommandTest : public ::testing::Test {
 protected:
  TokenizeCommandTest() {
    SmallVocabulary vocabulary;
    vocabulary.AddMerge("a", "b");
    vocabulary.Add("<end>", TokenType::kControl);
    Vocabulary view = vocabulary.View();
    tokenizer_ = *Tokenizer::Create(view);
    view.bos_id = 'b';
    view.adds_bos = true;
    with_bos_ = *Tokenizer::Create(view);
  }

  static std::string Lines(const Tokenizer& tokenizer, std::string_view input,
                           std::string_view separator, const TokenLineOptions& options) {
    std::ostringstream output;
    WriteTokenLines(tokenizer, options, separator, input, output);
    return output.str();
  }
  std::string Lines(std::string_view input, std::string_view separator, bool parse_special) {
    return Lines(*tokenizer_, input, separator, {.parse_special = parse_special});
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const Tokenizer> with_bos_;
};

TEST_F(TokenizeCommandTest, ALineForEachText) {
  EXPECT_EQ(Lines("ab\nc\n", "\n", false), " 256\n 99\n");
  EXPECT_EQ(Lines("ab\nc", "\n", false), " 256\n 99\n");
  EXPECT_EQ(Lines("ab\n\n\n", "\n", false), " 256\n\n\n");
  EXPECT_EQ(Lines("", "\n", false), "");
  EXPECT_EQ(Lines("ab\n--\nab\n--\n", "\n--\n", false), " 256\n 256\n");
  EXPECT_EQ(Lines("\n--\n", "\n--\n", false), "\n");
}

TEST_F(TokenizeCommandTest, ParseSpecial) {
  EXPECT_EQ(Lines("ab<end>", "\n", true), " 256 257\n");
  EXPECT_EQ(Lines("<end>", "\n", false), " 60 101 110 100 62\n");
}

TEST_F(TokenizeCommandTest, WithBosAndWithout) {
  EXPECT_EQ(Lines(*with_bos_, "ab\n", "\n", {}), " 98 256\n");
  EXPECT_EQ(Lines(*with_bos_, "ab\n", "\n", {.text_alone = true}), " 256\n");
  EXPECT_EQ(Lines(*with_bos_, "<end>", "\n", {.parse_special = true, .text_alone = true}),
            " 257\n");
}

class TokenizeCommandLineTest : public ::testing::Test {
 protected:
  // Runs `orcd-inspect ARGS` and returns its stderr.
  std::string Run(std::vector<std::string> args) {
    CLI::App app;
    AddTokenizeCommand(app, exit_code_);
    ::testing::internal::CaptureStderr();
    // The parser takes the arguments in reverse order.
    std::ranges::reverse(args);
    app.parse(std::move(args));
    return ::testing::internal::GetCapturedStderr();
  }

  int exit_code_ = -1;
};

TEST_F(TokenizeCommandLineTest, SaysWhatIsWrong) {
  EXPECT_THAT(Run({"tokenize", "--model", "/no/such.gguf"}), HasSubstr("/no/such.gguf"));
  EXPECT_EQ(exit_code_, 1);
  EXPECT_THAT(Run({"tokenize", "--model", "x", "--separator", "\\q"}), HasSubstr("--separator: "));
  EXPECT_EQ(exit_code_, 1);
  EXPECT_THAT(Run({"tokenize", "--model", "x", "--separator", ""}),
              HasSubstr("--separator: must not be empty"));
  EXPECT_EQ(exit_code_, 1);
}

}  // namespace
}  // namespace orcd
