#include "runtime/text/spm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/random_text_for_test.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/utf8_stream.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<const Tokenizer> Create(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += tokenizer.TokenBytes(id);
  return text;
}

// ▁ in a text is a space.
std::string WithSpaces(std::string text) {
  absl::StrReplaceAll({{"▁", " "}}, &text);
  return text;
}

class SpmTest : public ::testing::Test {
 protected:
  std::unique_ptr<const Tokenizer> Make(bool adds_space_prefix = false) {
    return Create(vocabulary_.View("llama", adds_space_prefix));
  }
  static std::vector<int32_t> Encode(const Tokenizer& tokenizer, std::string_view text) {
    return tokenizer.Encode(text, /*parse_special=*/false);
  }

  SmallSpmVocabulary vocabulary_;
  const int32_t space_ = vocabulary_.Add("▁", -9);
  const int32_t a_ = vocabulary_.Add("a", -9);
  const int32_t b_ = vocabulary_.Add("b", -9);
  const int32_t c_ = vocabulary_.Add("c", -9);
};

TEST_F(SpmTest, TheHighestScoreMergesFirst) {
  const int32_t ab = vocabulary_.Add("ab", -2);
  const int32_t bc = vocabulary_.Add("bc", -1);
  const int32_t space_a = vocabulary_.Add("▁a", -3);
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(a_, bc));
  EXPECT_THAT(Encode(*tokenizer, "ab"), ElementsAre(ab));
  EXPECT_THAT(Encode(*tokenizer, " abc a"), ElementsAre(space_a, bc, space_a));
  EXPECT_THAT(Encode(*tokenizer, "  "), ElementsAre(space_, space_));
}

TEST_F(SpmTest, OfEqualScoresTheLeftmostMerges) {
  const int32_t ab = vocabulary_.Add("ab", -1);
  const int32_t bc = vocabulary_.Add("bc", -1);
  const int32_t aa = vocabulary_.Add("aa", -1);
  const int32_t aaa = vocabulary_.Add("aaa", -2);
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(ab, c_));
  EXPECT_THAT(Encode(*tokenizer, "bcabc"), ElementsAre(bc, ab, c_));
  EXPECT_THAT(Encode(*tokenizer, "aaa"), ElementsAre(aaa));
  EXPECT_THAT(Encode(*tokenizer, "aaaa"), ElementsAre(aa, aa));
}

TEST_F(SpmTest, MergesAreFoundThroughTokensOnly) {
  const int32_t abc = vocabulary_.Add("abc", -1);
  EXPECT_THAT(Encode(*Make(), "abc"), ElementsAre(a_, b_, c_)) << "neither ab nor bc is a token";
  vocabulary_.Add("bc", -5);
  EXPECT_THAT(Encode(*Make(), "abc"), ElementsAre(abc));
}

TEST_F(SpmTest, OtherCharactersAreBytes) {
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "aéa"), ElementsAre(a_, 0xC3, 0xA9, a_));
  EXPECT_THAT(Encode(*tokenizer, std::string_view("\0", 1)), ElementsAre(0));
  EXPECT_THAT(Encode(*tokenizer, "\xFF"), ElementsAre(0xEF, 0xBF, 0xBD));
  EXPECT_EQ(tokenizer->TokenBytes(0xC3), "\xC3");
  EXPECT_EQ(tokenizer->TokenText(0xC3), "<0xC3>");
}

// A character may be part of a token and no token.
TEST_F(SpmTest, CharactersOfTokensMergeEvenIfTheyAreNone) {
  const int32_t a_acute = vocabulary_.Add("aé", -1);
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "aé"), ElementsAre(a_acute));
  EXPECT_THAT(Encode(*tokenizer, "bé"), ElementsAre(b_, 0xC3, 0xA9));
}

TEST_F(SpmTest, PlainTextGivesNoOtherTokens) {
  for (const std::string_view text : {"<", "s", ">", "<s", "0", "x", "<0", "<0x", "<0x0", "A"}) {
    vocabulary_.Add(std::string(text), -5);
  }
  vocabulary_.Add("ab", -1, TokenType::kUnused);
  vocabulary_.Add("bc", -1, TokenType::kControl);
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(a_, b_, c_));
  EXPECT_EQ(Encode(*tokenizer, "<s>").size(), 2) << "<s and >";
  EXPECT_EQ(Encode(*tokenizer, "<0x0A>").size(), 3) << "<0x0, A and >";
  EXPECT_EQ(Decode(*tokenizer, Encode(*tokenizer, "<s><0x0A>")), "<s><0x0A>");
}

TEST_F(SpmTest, TokensMayHoldSpaces) {
  const int32_t b_space = vocabulary_.Add("b▁", -2);
  const int32_t b_space_c = vocabulary_.Add("b▁c", -1);
  const int32_t spaces = vocabulary_.Add("▁▁", -3);
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "b c"), ElementsAre(b_space_c));
  EXPECT_THAT(Encode(*tokenizer, "ab a"), ElementsAre(a_, b_space, a_));
  EXPECT_THAT(Encode(*tokenizer, "a   c"), ElementsAre(a_, spaces, space_, c_));
  EXPECT_THAT(Encode(*tokenizer, "a▁▁c"), ElementsAre(a_, spaces, c_));
}

TEST_F(SpmTest, SpaceBeforeTheTextAndBehindSpecialTokens) {
  const int32_t space_a = vocabulary_.Add("▁a", -1);
  const int32_t call = vocabulary_.Add("<call>", 0, TokenType::kUserDefined);
  const auto tokenizer = Make(/*adds_space_prefix=*/true);
  constexpr int32_t kBos = SmallSpmVocabulary::kBos;
  constexpr int32_t kUnk = SmallSpmVocabulary::kUnk;
  EXPECT_THAT(tokenizer->Encode("a<s>a b<s><unk> a", true),
              ElementsAre(space_a, kBos, space_a, space_, b_, kBos, kUnk, space_, space_a));
  EXPECT_THAT(tokenizer->Encode("a<call>a", false), ElementsAre(space_a, call, space_a));
  EXPECT_THAT(tokenizer->Encode("", true), ElementsAre());
  EXPECT_THAT(tokenizer->Encode("<s>", true), ElementsAre(kBos));
  EXPECT_THAT(tokenizer->Encode("aé", false), ElementsAre(space_a, 0xC3, 0xA9));
  EXPECT_EQ(Decode(*tokenizer, tokenizer->Encode("a b", false)), " a b");
}

TEST_F(SpmTest, Tokens) {
  const int32_t spaces = vocabulary_.Add("▁▁ab▁", -1);
  const int32_t user_defined = vocabulary_.Add("▁x", 0, TokenType::kUserDefined);
  const auto tokenizer = Make();
  EXPECT_EQ(tokenizer->TokenBytes(spaces), "  ab ");
  EXPECT_EQ(tokenizer->TokenText(spaces), "▁▁ab▁");
  EXPECT_EQ(tokenizer->TokenBytes(user_defined), "▁x") << "found as it is written";
  EXPECT_EQ(tokenizer->TokenBytes(SmallSpmVocabulary::kUnk), "");
  EXPECT_EQ(tokenizer->TokenBytes('\n'), "\n");
  // A client may write ▁ itself.
  EXPECT_EQ(tokenizer->longest_token_bytes(), std::string_view("▁▁ab▁").size());
}

// Merges by the definition, on texts.
std::vector<int32_t> EncodePlainly(const std::map<std::string, std::pair<float, int32_t>>& tokens,
                                   std::string_view text) {
  std::vector<std::string> parts;
  for (size_t pos = 0; pos < text.size(); pos += parts.back().size()) {
    parts.emplace_back(text.substr(pos, DecodeUtf8(text, pos).length));
  }
  for (std::string& part : parts) {
    if (part == " ") part = "▁";
  }
  while (true) {
    float best = -std::numeric_limits<float>::infinity();
    size_t at = parts.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto token = tokens.find(parts[i] + parts[i + 1]);
      if (token == tokens.end() || token->second.first <= best) continue;
      best = token->second.first;
      at = i;
    }
    if (at == parts.size()) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) {
    if (const auto token = tokens.find(part); token != tokens.end()) {
      ids.push_back(token->second.second);
    } else {
      for (const char byte : part) ids.push_back(static_cast<uint8_t>(byte));
    }
  }
  return ids;
}

TEST(SpmRandomTest, AsByTheDefinition) {
  std::mt19937_64 random(11);
  const auto text_of = [&](const std::vector<std::string>& letters, size_t least, size_t most) {
    std::string text;
    for (auto n = least + random() % (most - least + 1); n > 0; --n) {
      text += letters[random() % letters.size()];
    }
    return text;
  };
  for (int i = 0; i < 1000; ++i) {
    SmallSpmVocabulary vocabulary;
    std::map<std::string, std::pair<float, int32_t>> tokens;
    for (int n = 0; n < 25; ++n) {
      const std::string spelling = text_of({"▁", "a", "b", "é"}, 1, 4);
      const auto score = static_cast<float>(random() % 6) - 9;
      if (tokens.contains(spelling)) continue;
      tokens[spelling] = {score, vocabulary.Add(spelling, score)};
    }
    const auto tokenizer = Create(vocabulary.View());
    for (int n = 0; n < 20; ++n) {
      // Long texts are merged in another way than short ones.
      const std::string text = text_of({" ", "a", "b", "é", "x"}, 0, n == 0 ? 200 : 20);
      ASSERT_EQ(tokenizer->Encode(text, false), EncodePlainly(tokens, text)) << text;
    }
  }
}

// ---------------------------------------------------------------------------------------------
// Invalid vocabularies.

struct BadVocabulary {
  std::string name;
  std::function<void(SmallSpmVocabulary&)> spoil;
  std::string message;
};

class BadSpmVocabularyTest : public ::testing::TestWithParam<BadVocabulary> {};

TEST_P(BadSpmVocabularyTest, IsRefused) {
  SmallSpmVocabulary vocabulary;
  vocabulary.Add("a");
  ASSERT_TRUE(Tokenizer::Create(vocabulary.View()).ok());
  GetParam().spoil(vocabulary);
  const absl::Status status = Tokenizer::Create(vocabulary.View()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(GetErrorDetails(status).reason, "TOKENIZER_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSpmVocabularyTest,
    ::testing::ValuesIn(std::vector<BadVocabulary>{
        {"TooFewScores", [](auto& v) { v.scores().pop_back(); },
         "tokenizer.ggml.scores: 259 scores for 260 tokens"},
        {"NoScores", [](auto& v) { v.scores().clear(); },
         "tokenizer.ggml.scores: 0 scores for 260 tokens"},
        {"ScoreIsNan", [](auto& v) { v.scores()[7] = std::numeric_limits<float>::quiet_NaN(); },
         "tokenizer.ggml.scores: the score of token 7 is not finite"},
        {"ScoreIsInfinite",
         [](auto& v) { v.scores()[8] = -std::numeric_limits<float>::infinity(); },
         "tokenizer.ggml.scores: the score of token 8 is not finite"},
        {"ByteMissing", [](auto& v) { v.tokens()[0x0A] = "<0x0a>"; },
         "tokenizer.ggml.tokens: no token '<0x0A>' of type 6 for byte 10"},
        {"ByteOfAnotherType", [](auto& v) { v.types()[0xFF] = 1; },
         "tokenizer.ggml.tokens: no token '<0xFF>' of type 6 for byte 255"},
        {"TokenTooLong", [](auto& v) { v.Add(std::string(513, 'a')); },
         "tokenizer.ggml.tokens: token 260 has 513 bytes; at most 512 are possible"},
    }),
    [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------------------------------------
// Gemma 4.

class Gemma4Test : public ::testing::Test {
 protected:
  std::unique_ptr<const Tokenizer> Make() { return Create(vocabulary_.View("gemma4")); }
  static std::vector<int32_t> Encode(const Tokenizer& tokenizer, std::string_view text) {
    return tokenizer.Encode(text, /*parse_special=*/false);
  }

  SmallSpmVocabulary vocabulary_;
  const int32_t space_ = vocabulary_.Add("▁");
  const int32_t line_feed_ = vocabulary_.Add("\n");
  const int32_t a_ = vocabulary_.Add("a");
  const int32_t b_ = vocabulary_.Add("b");
  const int32_t c_ = vocabulary_.Add("c");
};

TEST_F(Gemma4Test, MergesByTheList) {
  const int32_t bc = vocabulary_.AddMerge("b", "c");
  const int32_t ab = vocabulary_.AddMerge("a", "b");
  const int32_t space_a = vocabulary_.AddMerge("▁", "a");
  vocabulary_.Add("cc");
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(a_, bc));
  EXPECT_THAT(Encode(*tokenizer, "ab"), ElementsAre(ab));
  EXPECT_THAT(Encode(*tokenizer, " a b"), ElementsAre(space_a, space_, b_));
  EXPECT_THAT(Encode(*tokenizer, "cc"), ElementsAre(c_, c_)) << "only merges lead to a token";
  EXPECT_THAT(Encode(*tokenizer, "aéx"), ElementsAre(a_, 0xC3, 0xA9, 'x'));
  EXPECT_EQ(Decode(*tokenizer, Encode(*tokenizer, " a b")), " a b");
}

TEST_F(Gemma4Test, RunsOfLineFeeds) {
  const int32_t two = vocabulary_.AddMerge("\n", "\n");
  const int32_t three = vocabulary_.Add("\n\n\n");
  vocabulary_.AddMerge("a", "\n");
  const auto tokenizer = Make();
  EXPECT_THAT(Encode(*tokenizer, "a\n"), ElementsAre(a_, line_feed_)) << "no merge from outside";
  EXPECT_THAT(Encode(*tokenizer, "a\n\nb"), ElementsAre(a_, two, b_));
  EXPECT_THAT(Encode(*tokenizer, "\n\n\n"), ElementsAre(three)) << "though no merge leads to it";
  EXPECT_THAT(Encode(*tokenizer, "\n\n\n\n\n"), ElementsAre(two, two, line_feed_));
}

// The expected ids are those of Hugging Face's tokenizers 0.23.3, with this vocabulary in the form
// of Gemma's tokenizer.json: BPE with byte_fallback after a replacement of spaces.
TEST(Gemma4LibraryTest, TheSameIds) {
  SmallSpmVocabulary vocabulary;
  for (const char* character : {"▁", "\n", "t", "h", "e", "r", "i", "n", "é", "中"}) {
    vocabulary.Add(character);
  }
  for (const auto& [left, right] : {std::pair("t", "h"),
                                    {"th", "e"},
                                    {"▁", "the"},
                                    {"i", "n"},
                                    {"▁", "in"},
                                    {"e", "r"},
                                    {"▁", "▁"},
                                    {"▁▁", "▁▁"},
                                    {"\n", "\n"},
                                    {"\n\n", "\n"},
                                    {"é", "é"},
                                    {"the", "r"},
                                    {"n", "▁"}}) {
    vocabulary.AddMerge(left, right);
  }
  const auto tokenizer = Create(vocabulary.View("gemma4"));
  const std::pair<std::string, std::vector<int32_t>> cases[] = {
      {"the there in the inn", {270, 271, 264, 263, 273, 271, 273, 266}},
      {"  in   the", {259, 273, 275, 271}},
      {"ththe", {269, 270}},
      {"therin", {280, 272}},
      {"thé éééé 中中", {269, 267, 259, 279, 279, 259, 268, 268}},
      {"\n\n\n\n\n", {277, 278}},
      {"the\n\nin\n", {270, 277, 272, 260}},
      {"in in  n ", {272, 273, 275, 281}},
      {"x▁the", {120, 271}},
      {"😀e", {240, 159, 152, 128, 263}},
      {"nnn tithe e r", {266, 266, 281, 261, 265, 270, 259, 263, 259, 264}},
      {"   \n  \n", {275, 259, 260, 275, 260}},
  };
  for (const auto& [text, ids] : cases) EXPECT_EQ(tokenizer->Encode(text, false), ids) << text;
}

TEST_F(Gemma4Test, ChecksItsMerges) {
  vocabulary_.merges().push_back("a x");
  EXPECT_THAT(std::string(Tokenizer::Create(vocabulary_.View("gemma4")).status().message()),
              HasSubstr("tokenizer.ggml.merges: merge 0 is 'a x': there is no token 'x'"));
  vocabulary_.merges().back() = "a b";
  vocabulary_.Add("ab", 0, TokenType::kControl);
  EXPECT_THAT(std::string(Tokenizer::Create(vocabulary_.View("gemma4")).status().message()),
              HasSubstr("must not come out of plain text"));
}

// ---------------------------------------------------------------------------------------------
// Both.

class SpmKindsTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    for (const std::string_view character :
         {"▁", "\n", "i", "n", "<", "|", "é", "'", "1", "中", "\u00A0"}) {
      vocabulary_.Add(std::string(character), -9);
    }
    for (const auto& [left, right] : {std::pair("i", "n"),
                                      {"▁", "in"},
                                      {"▁", "▁"},
                                      {"▁▁", "▁▁"},
                                      {"\n", "\n"},
                                      {"1", "1"},
                                      {"i", "i"},
                                      {"ii", "ii"},
                                      {"in", "▁"},
                                      {"<", "|"},
                                      {"é", "é"}}) {
      vocabulary_.AddMerge(left, right);
    }
    end_ = vocabulary_.Add("<|im_end|>", 0, TokenType::kControl);
    vocabulary_.Add("<tool_call>", 0, TokenType::kUserDefined);
    vocabulary_.Add("\n\n\n", 0, TokenType::kUserDefined);
    vocabulary_.Add("", -1);
    tokenizer_ = Create(vocabulary_.View(GetParam()));
  }

  SmallSpmVocabulary vocabulary_;
  int32_t end_;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(SpmKindsTest, RoundTripOfRandomText) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = RandomText(random, 50);
    std::string decoded;
    Utf8Stream stream;
    for (const int32_t id : tokenizer_->Encode(text, false)) {
      ASSERT_NE(id, end_);
      decoded += stream.Append(tokenizer_->TokenBytes(id));
    }
    ASSERT_EQ(decoded + stream.Finish(), WithSpaces(text));
  }
}

TEST_P(SpmKindsTest, RandomBytesDecodeToTheirReplacement) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = RandomBytes(random, 40);
    ASSERT_EQ(Decode(*tokenizer_, tokenizer_->Encode(bytes, false)),
              WithSpaces(ReplaceInvalidUtf8(bytes)));
  }
}

// Each text takes quadratic time or worse in a careless tokenizer.
TEST_P(SpmKindsTest, HostileLongTexts) {
  for (const std::string_view part : {"in", "\n", " \n", "in ", "<", "<|im_end|", "x",
                                      "<tool_call>", "é", "\u0301", "中", "\u00A0"}) {
    const std::string text = RepeatedTo(kLong, part);
    EXPECT_EQ(Decode(*tokenizer_, tokenizer_->Encode(text, false)), text) << part;
  }
  for (const std::string_view part : {"i", " ", "1"}) {
    const std::string text = RepeatedTo(kLongest, part);
    EXPECT_EQ(Decode(*tokenizer_, tokenizer_->Encode(text, false)), text) << part;
  }
  EXPECT_EQ(tokenizer_->Encode(RepeatedTo(kLong, "<|im_end|>"), true).front(), end_);
}

TEST_P(SpmKindsTest, ControlTokensOnlyWhereAsked) {
  EXPECT_THAT(tokenizer_->Encode("<|im_end|>", true), ElementsAre(end_));
  EXPECT_THAT(tokenizer_->Encode("<|im_end|>", false), Not(::testing::Contains(end_)));
}

INSTANTIATE_TEST_SUITE_P(All, SpmKindsTest, ::testing::Values("llama", "gemma4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace orcd
