#include "runtime/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

TEST(FindPreTokenizerTest, FindsEveryNameInItsRow) {
  std::set<std::string_view> names;
  for (const PreTokenizer& row : PreTokenizers()) {
    ASSERT_FALSE(row.names.empty());
    for (const std::string_view name : row.names) {
      EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
      const auto found = FindPreTokenizer(name);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(*found, &row) << name;
    }
  }
}

TEST(FindPreTokenizerTest, AFileWithoutANameGetsAGuess) {
  EXPECT_TRUE((*FindPreTokenizer(""))->is_guess);
  EXPECT_TRUE((*FindPreTokenizer("default"))->is_guess);
  EXPECT_FALSE((*FindPreTokenizer("qwen2"))->is_guess);
}

TEST(FindPreTokenizerTest, RefusesOthersByName) {
  const absl::Status status = FindPreTokenizer("kimi-k2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(GetErrorDetails(status).reason, "TOKENIZER_UNSUPPORTED");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tokenizer.ggml.pre: the file has 'kimi-k2'; only qwen2, "));
}

TEST(FindPreTokenizerTest, FlagsOfTheRows) {
  for (const std::string_view name : {"llama-bpe", "tekken"}) {
    EXPECT_TRUE((*FindPreTokenizer(name))->ignores_merges) << name;
    EXPECT_TRUE((*FindPreTokenizer(name))->adds_bos) << name;
  }
  for (const std::string_view name : {"glm4", "minicpm5"}) {
    EXPECT_TRUE((*FindPreTokenizer(name))->ignores_merges) << name;
    EXPECT_FALSE((*FindPreTokenizer(name))->adds_bos) << name;
  }
  for (const std::string_view name : {"qwen2", "chatglm-bpe", "gpt-4o", "deepseek-v3", "smollm"}) {
    EXPECT_FALSE((*FindPreTokenizer(name))->ignores_merges) << name;
    EXPECT_FALSE((*FindPreTokenizer(name))->adds_bos) << name;
  }
}

TEST(WriteOutClassesTest, LeavesOtherSyntaxAlone) {
  for (const std::string_view pattern : {"'[sS]|(?:a|b)?", R"([^\r\n!-/\[\]]{1,3}|\$+)", R"([[a])",
                                         "", R"(\x{4E00}[\x{800}-\x{9FA5}])"}) {
    EXPECT_EQ(WriteOutClasses(pattern), pattern);
  }
}

TEST(WriteOutClassesTest, WritesBracketsWhereThereAreNone) {
  const std::string space =
      R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}-\x{2029}\x{202f}\x{205f})"
      R"(\x{3000})";
  EXPECT_EQ(WriteOutClasses(R"(\s+(?!\S))"), "[" + space + "]+(?![^" + space + "])");
  EXPECT_EQ(WriteOutClasses(R"([^\s\[x]\s)"), "[^" + space + R"(\[x][)" + space + "]");
  EXPECT_EQ(WriteOutClasses(R"(\p{Lt}a)").substr(0, 29), R"([\x{1c5}\x{1c8}\x{1cb}\x{1f2})");
  EXPECT_TRUE(WriteOutClasses(R"(\p{Lt}a)").ends_with("]a"));
}

// A property without characters would be written as nothing, or as empty brackets.
TEST(WriteOutClassesTest, EveryPropertyOfTheTableHasCharacters) {
  for (const PreTokenizer& row : PreTokenizers()) {
    for (const std::string_view pattern : row.patterns) {
      const std::string written = WriteOutClasses(pattern);
      EXPECT_EQ(written.find("\\p"), std::string::npos) << pattern;
      EXPECT_EQ(written.find("[]"), std::string::npos) << pattern;
      EXPECT_EQ(written.find("[^]"), std::string::npos) << pattern;
    }
  }
}

}  // namespace
}  // namespace orcd
