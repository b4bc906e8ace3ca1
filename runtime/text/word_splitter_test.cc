#include "runtime/text/word_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_join.h"
#include "runtime/base/steady_time.h"
#include "runtime/text/random_text_for_test.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Words(const WordSplitter& splitter, std::string_view text) {
  std::vector<std::string> words;
  splitter.Split(text, [&](std::string_view piece, bool is_word) {
    if (is_word) words.emplace_back(piece);
    return is_word;
  });
  return words;
}

// Texts with ¦ between the words. The words were computed by Hugging Face's tokenizers 0.23.3 with
// the expressions of the sources that pre_tokenizer.cc names.
struct RowCases {
  std::vector<std::string_view> names;
  std::vector<std::string_view> texts;
};

const std::vector<RowCases>& AllCases() {
  static const std::vector<RowCases> cases = {
      {{"qwen2", "stablelm2"},
       {"It¦'s¦ I¦'LL¦ '¦sure¦ HelloWorld¦'s¦ x¦1¦2¦3¦4¦5¦6¦7¦ ¦ ¦1¦2¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000¦\u3000中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!\n\n¦/*¦ */",
        "नमस¦\u094Dत¦\u0947¦ café¦ e¦\u0301x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ 、。！¦ABC¦「x¦」¦ ¦1¦2¦か月",
        "½¦Ⅷ¦٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"qwen35"},
       {"It¦'s¦ I¦'LL¦ '¦sure¦ HelloWorld¦'s¦ x¦1¦2¦3¦4¦5¦6¦7¦ ¦ ¦1¦2¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000¦\u3000中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!\n\n¦/*¦ */",
        "नमस\u094Dत\u0947¦ café¦ e\u0301x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ 、。！¦ABC¦「x¦」¦ ¦1¦2¦か月",
        "½¦Ⅷ¦٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"llama-bpe", "glm4", "dbrx"},
       {"It¦'s¦ I¦'LL¦ '¦sure¦ HelloWorld¦'s¦ x¦123¦456¦7¦ ¦ ¦12¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000¦\u3000中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!\n\n¦/*¦ */",
        "नमस¦\u094Dत¦\u0947¦ café¦ e¦\u0301x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ 、。！¦ABC¦「x¦」¦ ¦12¦か月",
        "½Ⅷ٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"minicpm5"},
       {"It¦'s¦ I¦'LL¦ '¦sure¦ HelloWorld¦'s¦ x¦123¦456¦7¦  ¦12¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000¦\u3000中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!\n\n¦/*¦ */",
        "नमस¦\u094Dत¦\u0947¦ café¦ e¦\u0301x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ 、。！¦ABC¦「x¦」¦ ¦12¦か月",
        "½Ⅷ٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"seed-coder"},
       {"It¦'s¦ I¦'LL¦ '¦sure¦ HelloWorld¦'s¦ x¦1¦2¦3¦4¦5¦6¦7¦ ¦ ¦1¦2¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000¦\u3000中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!¦\n\n¦/*¦ */",
        "नमस¦\u094Dत¦\u0947¦ café¦ e¦\u0301x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ 、。！¦ABC¦「x¦」¦ ¦1¦2¦か月",
        "½¦Ⅷ¦٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"gpt-4o"},
       {"It's¦ I'LL¦ '¦sure¦ Hello¦World's¦ x¦123¦456¦7¦ ¦ ¦12¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000¦\u3000中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!\n\n/¦*¦ */",
        "नमस\u094Dत\u0947¦ café¦ e\u0301x¦ Привет¦Мир¦ ÀÉî¦Ê",
        "中文かなカナ한국어¦ 、。！¦ABC¦「x¦」¦ ¦12¦か月",
        "½Ⅷ٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"tekken"},
       {"It¦'s¦ I¦'LL¦ '¦sure¦ Hello¦World¦'s¦ x¦1¦2¦3¦4¦5¦6¦7¦ ¦ ¦1¦2¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000¦\u3000中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!\n\n/¦*¦ */",
        "नमस\u094Dत\u0947¦ café¦ e\u0301x¦ Привет¦Мир¦ ÀÉî¦Ê",
        "中文かなカナ한국어¦ 、。！¦ABC¦「x¦」¦ ¦1¦2¦か月",
        "½¦Ⅷ¦٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"deepseek-v3"},
       {"It¦'s¦ I¦'LL¦ '¦sure¦ HelloWorld¦'s¦ x¦123¦456¦7¦  ¦12¦.¦5",
        "a¦ ¦ b¦   \n\n¦ ¦ c¦\t¦\td¦ \r\n¦!¦ \n¦ \u3000\u3000¦中¦  ",
        "(foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!\n\n¦/*¦ */",
        "नमस\u094Dत\u0947¦ café¦ e\u0301x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ¦한국어¦ 、。！¦ABC¦「¦x¦」¦ ¦12¦か月",
        "½Ⅷ٣¦ ¦\001¦\001a¦😀¦\u200D¦😀¦ _¦a¦-b¦ .¦Net¦ ¦\u00A0x"}},
      {{"deepseek-coder"},
       {"It¦'¦s¦ I¦'¦LL¦ '¦sure¦ HelloWorld¦'¦s¦ x¦1¦2¦3¦4¦5¦6¦7¦  ¦1¦2¦.¦5",
        "a¦ ¦ b¦   ¦\n¦\n¦ ¦ c¦\t¦\td¦ ¦\r¦\n¦!¦ ¦\n¦ ¦\u3000¦\u3000中¦  ",
        "(¦foo¦)¦ [¦bar¦]¦$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!¦\n¦\n¦/*¦ */",
        "नमस¦\u094D¦त¦\u0947¦ café¦ e¦\u0301¦x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ ¦、。¦！¦ABC¦「¦x¦」¦ ¦1¦2¦か月",
        "½¦Ⅷ¦٣¦ \001\001¦a¦😀¦\u200D¦😀¦ _¦a¦-¦b¦ .¦Net¦ ¦\u00A0x"}},
      {{"deepseek-llm"},
       {"It¦'¦s¦ I¦'¦LL¦ '¦sure¦ HelloWorld¦'¦s¦ x¦1234567¦  ¦12¦.¦5",
        "a¦ ¦ b¦   ¦\n¦\n¦ ¦ c¦\t¦\td¦ ¦\r¦\n¦!¦ ¦\n¦ ¦\u3000\u3000¦中¦  ",
        "(¦foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!¦\n¦\n¦/*¦ */",
        "नमस\u094Dत\u0947¦ caf¦é¦ e¦\u0301¦x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ ¦、。¦！¦ABC¦「¦x¦」¦ ¦12¦か月",
        "½¦Ⅷ¦٣¦ \001\001¦a¦😀¦\u200D¦😀¦ _¦a¦-¦b¦ .¦Net¦ ¦\u00A0x"}},
      {{"gpt-2"},
       {"It¦'s¦ I¦'¦LL¦ '¦sure¦ HelloWorld¦'s¦ x¦1234567¦ ¦ 12¦.¦5",
        "a¦ ¦ b¦   \n\n ¦ c¦\t¦\t¦d¦ \r¦\n¦!¦ \n \u3000¦\u3000¦中¦  ",
        "(¦foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!¦\n¦\n¦/*¦ */",
        "नमस¦\u094D¦त¦\u0947¦ café¦ e¦\u0301¦x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ 、。！¦ABC¦「¦x¦」¦ 12¦か月",
        "½Ⅷ٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-¦b¦ .¦Net¦ ¦\u00A0¦x"}},
      {{"smollm"},
       {"It¦'s¦ I¦'¦LL¦ '¦sure¦ HelloWorld¦'s¦ x¦1¦2¦3¦4¦5¦6¦7¦  ¦1¦2¦.¦5",
        "a¦ ¦ b¦   \n\n ¦ c¦\t¦\t¦d¦ \r¦\n¦!¦ \n \u3000¦\u3000¦中¦  ",
        "(¦foo¦)¦ [¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ //!¦\n¦\n¦/*¦ */",
        "नमस¦\u094D¦त¦\u0947¦ café¦ e¦\u0301¦x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ 、。！¦ABC¦「¦x¦」¦ ¦1¦2¦か月",
        "½¦Ⅷ¦٣¦ \001\001¦a¦😀\u200D😀¦ _¦a¦-¦b¦ .¦Net¦ ¦\u00A0¦x"}},
      {{"falcon"},
       {"It¦'¦s¦ I¦'¦LL¦ ¦'¦sure¦ HelloWorld¦'¦s¦ x¦123¦456¦7¦ ¦ 12¦.¦5",
        "a¦ ¦ b¦   \n\n ¦ c¦\t¦\t¦d¦ \r\n¦!¦ \n \u3000¦\u3000¦中¦  ",
        "(¦foo¦)¦ ¦[¦bar¦]$¦x¦+=<¦y¦>`¦z¦`~|^¦ ¦//!¦\n\n¦/*¦ ¦*/",
        "नमस¦\u094D¦त¦\u0947¦ café¦ e¦\u0301¦x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ ¦、。！¦ABC¦「¦x¦」¦ 12¦か月",
        "½Ⅷ٣¦ \001\001¦a¦😀\u200D😀¦ ¦_¦a¦-¦b¦ ¦.¦Net¦ ¦\u00A0¦x"}},
      {{"default"},
       {"It¦'¦s¦ I¦'¦LL¦ ¦'¦sure¦ HelloWorld¦'¦s¦ x¦123¦456¦7¦ ¦ ¦12¦.¦5",
        "a¦ ¦ b¦   \n\n ¦ c¦\t¦\t¦d¦ \r\n¦!¦ \n \u3000¦\u3000¦中¦  ",
        "(¦foo¦)¦ ¦[¦bar¦]$¦x¦+=<¦y¦>¦`¦z¦`¦~|^¦ ¦//!¦\n\n¦/*¦ ¦*/",
        "नमस¦\u094D¦त¦\u0947¦ café¦ e¦\u0301¦x¦ ПриветМир¦ ÀÉîÊ",
        "中文かなカナ한국어¦ ¦、。！¦ABC¦「¦x¦」¦ ¦12¦か月",
        "½Ⅷ٣¦ \001\001¦a¦😀\u200D😀¦ ¦_¦a¦-¦b¦ ¦.¦Net¦ ¦\u00A0¦x"}}};
  return cases;
}

TEST(WordSplitterTest, CasesOfEveryRow) {
  constexpr std::string_view kSeparator = "¦";
  for (const RowCases& row : AllCases()) {
    for (const std::string_view name : row.names) {
      const WordSplitter splitter(**FindPreTokenizer(name));
      for (const std::string_view expected : row.texts) {
        std::string text(expected);
        for (size_t at; (at = text.find(kSeparator)) != text.npos;) {
          text.erase(at, kSeparator.size());
        }
        EXPECT_EQ(absl::StrJoin(Words(splitter, text), std::string(kSeparator)), expected) << name;
      }
    }
  }
}

TEST(WordSplitterTest, EveryRowHasCases) {
  for (const PreTokenizer& row : PreTokenizers()) {
    const bool has_cases = std::ranges::any_of(AllCases(), [&](const RowCases& cases) {
      return std::ranges::find(cases.names, row.names[0]) != cases.names.end();
    });
    EXPECT_TRUE(has_cases) << row.names[0];
  }
}

// ---------------------------------------------------------------------------------------------
// Qwen2's words.

std::vector<std::string> Qwen2Words(std::string_view text) {
  static const WordSplitter splitter(**FindPreTokenizer("qwen2"));
  return Words(splitter, text);
}

TEST(Qwen2WordsTest, TakeOneCharacterBefore) {
  EXPECT_THAT(Qwen2Words("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(Qwen2Words("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(Qwen2Words("(x) \tz"), ElementsAre("(x", ")", " ", "\tz"));
  EXPECT_THAT(Qwen2Words("\u00A0été\u3000中文"), ElementsAre("\u00A0été", "\u3000中文"));
  EXPECT_THAT(Qwen2Words("\nx"), ElementsAre("\n", "x"));
  EXPECT_THAT(Qwen2Words("..x"), ElementsAre("..", "x"));
  EXPECT_THAT(Qwen2Words(".x.y"), ElementsAre(".x", ".y"));
}

TEST(Qwen2WordsTest, Contractions) {
  EXPECT_THAT(Qwen2Words("it's I'LL we'Ve"), ElementsAre("it", "'s", " I", "'LL", " we", "'Ve"));
  EXPECT_THAT(Qwen2Words("'sure"), ElementsAre("'s", "ure"));
  EXPECT_THAT(Qwen2Words("'Moi 'relent"), ElementsAre("'M", "oi", " '", "relent"));
  EXPECT_THAT(Qwen2Words("'re'la"), ElementsAre("'re", "'la"));
  // There is no Unicode case folding: U+017F is not an s here.
  EXPECT_THAT(Qwen2Words("'\u017Fo"), ElementsAre("'\u017Fo"));
  EXPECT_THAT(Qwen2Words("'"), ElementsAre("'"));
  EXPECT_THAT(Qwen2Words("'l"), ElementsAre("'l"));
  EXPECT_THAT(Qwen2Words("'1"), ElementsAre("'", "1"));
}

TEST(Qwen2WordsTest, NumbersOneByOne) {
  EXPECT_THAT(Qwen2Words("x123 4"), ElementsAre("x", "1", "2", "3", " ", "4"));
  EXPECT_THAT(Qwen2Words("½Ⅷ٣"), ElementsAre("½", "Ⅷ", "٣"));
}

TEST(Qwen2WordsTest, PunctuationTakesLineBreaks) {
  EXPECT_THAT(Qwen2Words(" !?\n\r\n x"), ElementsAre(" !?\n\r\n", " x"));
  EXPECT_THAT(Qwen2Words("  !"), ElementsAre(" ", " !"));
  EXPECT_THAT(Qwen2Words("\t!"), ElementsAre("\t", "!"));
  EXPECT_THAT(Qwen2Words("!\u2028"), ElementsAre("!", "\u2028"));
}

TEST(Qwen2WordsTest, MarksAreNoLetters) {
  EXPECT_THAT(Qwen2Words("e\u0301x"), ElementsAre("e", "\u0301x"));
  EXPECT_THAT(Qwen2Words("कि"), ElementsAre("क", "ि"));
  EXPECT_THAT(Qwen2Words(" \u0301\u0302"), ElementsAre(" \u0301\u0302"));
}

TEST(Qwen2WordsTest, SpaceRuns) {
  EXPECT_THAT(Qwen2Words("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(Qwen2Words("   1"), ElementsAre("  ", " ", "1"));
  EXPECT_THAT(Qwen2Words("  \n  \n  x"), ElementsAre("  \n  \n", " ", " x"));
  EXPECT_THAT(Qwen2Words("\t\n"), ElementsAre("\t\n"));
  EXPECT_THAT(Qwen2Words("\r\n\r\n"), ElementsAre("\r\n\r\n"));
  EXPECT_THAT(Qwen2Words("\u3000\u3000中"), ElementsAre("\u3000", "\u3000中"));
  EXPECT_THAT(Qwen2Words(" "), ElementsAre(" "));
}

// ---------------------------------------------------------------------------------------------
// Every row, on any text.

TEST(WordSplitterTest, WordsAreWholeCharactersAndOneWordAlone) {
  for (const PreTokenizer& row : PreTokenizers()) {
    const WordSplitter splitter(row);
    const bool has_end = std::ranges::any_of(
        row.patterns, [](std::string_view pattern) { return pattern.ends_with('$'); });
    std::mt19937_64 random(7);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = RandomText(random, 40);
      size_t end = 0;
      for (const std::string& word : Words(splitter, text)) {
        ASSERT_FALSE(word.empty()) << row.names[0];
        ASSERT_EQ(text.compare(end, word.size(), word), 0) << row.names[0];
        end += word.size();
        ASSERT_LE(end, text.size());
        ASSERT_TRUE(end == text.size() || (text[end] & 0xC0) != 0x80) << row.names[0];
        if (!has_end) {
          ASSERT_THAT(Words(splitter, word), ElementsAre(word)) << row.names[0];
        }
      }
      ASSERT_EQ(end, text.size()) << row.names[0];
    }
  }
}

TEST(WordSplitterTest, PiecesCanBeTakenBeforeTheyAreWords) {
  const WordSplitter splitter(**FindPreTokenizer("smollm"));
  std::vector<std::string> taken;
  splitter.Split("don't 1 don't", [&](std::string_view piece, bool is_word) {
    const bool takes = is_word || piece == "don't ";
    if (takes) taken.emplace_back(piece);
    return takes;
  });
  EXPECT_THAT(taken, ElementsAre("don't ", "1", " don", "'t"));
}

// Expects that each row in `names` splits each text in at most 50 times the time of prose. A word
// of one byte costs a call of RE2, as a word of prose does; a splitter that looked ahead over the
// rest of the text at every word would take a hundred thousand times as long.
void ExpectLinearTime(std::span<const std::string_view> names, std::span<const std::string> texts) {
  for (const std::string_view name : names) {
    const WordSplitter splitter(**FindPreTokenizer(name));
    size_t words = 0;
    const auto seconds = [&](std::string_view text) {
      const absl::Time start = SteadyNow();
      splitter.Split(text,
                     [&](std::string_view, bool is_word) { return words += is_word, is_word; });
      return absl::ToDoubleSeconds(SteadyNow() - start);
    };
    const std::string prose =
        RepeatedTo(texts[0].size(), "The quick brown fox jumps over the lazy dog. ");
    const double prose_seconds = seconds(prose);
    for (const std::string& text : texts) {
      EXPECT_LT(seconds(text), 1 + 50 * prose_seconds) << name << " " << text.substr(0, 8);
    }
    EXPECT_GT(words, prose.size() / 5);
  }
}

TEST(WordSplitterTest, HostileTextsTakeLinearTime) {
  constexpr size_t kLength = kLong / 8;
  std::mt19937_64 random(3);
  std::vector<std::string> texts(1);
  while (texts[0].size() < kLength) texts[0] += RandomText(random, 1000);
  for (const std::string_view part :
       {"a",   "A",    " ",  "1",  "\n", "\r",     "\t",     "'",      "!",
        "/",   "\x01", "é",  "中", "ー", "\u0301", "\u3000", "\u0085", "a b ",
        " \n", "\n ",  "aA", "1 ", "12", "'s",     " \u0301"}) {
    texts.push_back(RepeatedTo(kLength, part));
  }
  std::vector<std::string_view> names;
  for (const PreTokenizer& row : PreTokenizers()) names.push_back(row.names[0]);
  ExpectLinearTime(names, texts);
}

TEST(WordSplitterTest, FourMegabytesOfOneCharacterTakeLinearTime) {
  std::vector<std::string> texts;
  for (const std::string_view part : {"a", " ", "1", "\n", "a b "}) {
    texts.push_back(RepeatedTo(kLongest, part));
  }
  ExpectLinearTime(std::vector<std::string_view>{"gpt-4o", "deepseek-llm"}, texts);
}

}  // namespace
}  // namespace orcd
