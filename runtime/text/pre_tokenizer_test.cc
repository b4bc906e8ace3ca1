#include "runtime/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/random_text_for_test.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

// The words of Qwen2's pre-tokenizer.
std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  PreTokenizers().front().split(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(PreTokenizerTest, WordsTakeOneCharacterBefore) {
  EXPECT_THAT(Words("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(Words("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(Words("(x) \tz"), ElementsAre("(x", ")", " ", "\tz"));
  EXPECT_THAT(Words("\u00A0été\u3000中文"), ElementsAre("\u00A0été", "\u3000中文"));
  EXPECT_THAT(Words("\nx"), ElementsAre("\n", "x"));
  EXPECT_THAT(Words("..x"), ElementsAre("..", "x"));
  EXPECT_THAT(Words(".x.y"), ElementsAre(".x", ".y"));
}

TEST(PreTokenizerTest, Contractions) {
  EXPECT_THAT(Words("it's I'LL we'Ve"), ElementsAre("it", "'s", " I", "'LL", " we", "'Ve"));
  EXPECT_THAT(Words("'sure"), ElementsAre("'s", "ure"));
  EXPECT_THAT(Words("'Moi 'relent"), ElementsAre("'M", "oi", " '", "relent"));
  EXPECT_THAT(Words("'re'la"), ElementsAre("'re", "'la"));
  // There is no Unicode case folding: U+017F is not an s here.
  EXPECT_THAT(Words("'\u017Fo"), ElementsAre("'\u017Fo"));
  EXPECT_THAT(Words("'"), ElementsAre("'"));
  EXPECT_THAT(Words("'l"), ElementsAre("'l"));
  EXPECT_THAT(Words("'1"), ElementsAre("'", "1"));
}

TEST(PreTokenizerTest, NumbersOneByOne) {
  EXPECT_THAT(Words("x123 4"), ElementsAre("x", "1", "2", "3", " ", "4"));
  EXPECT_THAT(Words("½Ⅷ٣"), ElementsAre("½", "Ⅷ", "٣"));
}

TEST(PreTokenizerTest, PunctuationTakesLineBreaks) {
  EXPECT_THAT(Words(" !?\n\r\n x"), ElementsAre(" !?\n\r\n", " x"));
  EXPECT_THAT(Words("  !"), ElementsAre(" ", " !"));
  EXPECT_THAT(Words("\t!"), ElementsAre("\t", "!"));
  EXPECT_THAT(Words("!\u2028"), ElementsAre("!", "\u2028"));
}

TEST(PreTokenizerTest, MarksAreNoLetters) {
  EXPECT_THAT(Words("e\u0301x"), ElementsAre("e", "\u0301x"));
  EXPECT_THAT(Words("कि"), ElementsAre("क", "ि"));
  EXPECT_THAT(Words(" \u0301\u0302"), ElementsAre(" \u0301\u0302"));
}

TEST(PreTokenizerTest, SpaceRuns) {
  EXPECT_THAT(Words("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(Words("   1"), ElementsAre("  ", " ", "1"));
  EXPECT_THAT(Words("  \n  \n  x"), ElementsAre("  \n  \n", " ", " x"));
  EXPECT_THAT(Words("\t\n"), ElementsAre("\t\n"));
  EXPECT_THAT(Words("\r\n\r\n"), ElementsAre("\r\n\r\n"));
  EXPECT_THAT(Words("\u3000\u3000中"), ElementsAre("\u3000", "\u3000中"));
  EXPECT_THAT(Words(" "), ElementsAre(" "));
}

TEST(PreTokenizerTest, WordsAreWholeCharactersAndNeverEmpty) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = RandomText(random, 40);
    size_t end = 0;
    for (const std::string& word : Words(text)) {
      ASSERT_FALSE(word.empty());
      ASSERT_EQ(text.compare(end, word.size(), word), 0);
      end += word.size();
      ASSERT_LE(end, text.size());
      ASSERT_TRUE(end == text.size() || (text[end] & 0xC0) != 0x80);
    }
    ASSERT_EQ(end, text.size());
  }
}

}  // namespace
}  // namespace orcd
