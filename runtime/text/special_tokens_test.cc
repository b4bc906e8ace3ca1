#include "runtime/text/special_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The matches, as `id@begin`, or `id@begin-end` with white space.
std::vector<std::string> Find(const SpecialTokens& tokens, std::string_view text,
                              const std::vector<TextSpan>& spans) {
  std::vector<std::string> found;
  for (const SpecialTokenMatch& match : tokens.FindAll(text, spans)) {
    found.push_back(std::to_string(match.id) + "@" + std::to_string(match.begin));
    if (text[match.end - 1] == ' ') found.back() += "-" + std::to_string(match.end);
  }
  return found;
}

class SpecialTokensTest : public ::testing::Test {
 protected:
  std::vector<std::string> Find(std::string_view text, const std::vector<TextSpan>& spans) const {
    return orcd::Find(tokens_, text, spans);
  }
  std::vector<std::string> Find(std::string_view text, bool allows_control) const {
    return Find(text, {{0, text.size(), allows_control}});
  }

  const SpecialTokens tokens_{std::vector<SpecialToken>{
      {"<end>", 1, /*is_control=*/true},
      {"<call>", 2},
      {"ab", 3},
      {"bcd", 4},
      {"abab", 5},
  }};
};

TEST_F(SpecialTokensTest, ControlOnlyWhereAllowed) {
  EXPECT_THAT(Find("x<end><call>", true), ElementsAre("1@1", "2@6"));
  EXPECT_THAT(Find("x<end><call>", false), ElementsAre("2@6"));
  EXPECT_THAT(Find("<end><end><end>", {{0, 5, true}, {5, 10, false}, {10, 15, true}}),
              ElementsAre("1@0", "1@10"));
  EXPECT_THAT(Find("", true), IsEmpty());
  EXPECT_THAT(Find("<en", true), IsEmpty());
  EXPECT_THAT(Find("<e<end>", true), ElementsAre("1@2"));
}

TEST_F(SpecialTokensTest, LongestFirst) {
  EXPECT_THAT(Find("abcd", true), ElementsAre("4@1"));
  EXPECT_THAT(Find("ababab", true), ElementsAre("5@0", "3@4"));
  EXPECT_THAT(Find("abababcd", true), ElementsAre("5@0", "4@5"));
}

TEST_F(SpecialTokensTest, ControlTokensLieInOneSpan) {
  EXPECT_THAT(Find("<end>", {{0, 3, true}, {3, 5, true}}), IsEmpty());
  EXPECT_THAT(Find("<end>", {{0, 3, true}, {3, 5, false}}), IsEmpty());
}

// As if the whole text were one span.
TEST_F(SpecialTokensTest, OtherTokensMayLieInSeveral) {
  EXPECT_THAT(Find("abab", {{0, 2, false}, {2, 4, true}}), ElementsAre("5@0"));
  EXPECT_THAT(Find("<call>", {{0, 1, true}, {1, 2, false}, {2, 6, true}}), ElementsAre("2@0"));
  EXPECT_THAT(Find("abxab", {{0, 2, false}, {3, 5, true}}), ElementsAre("3@0", "3@3"));
  EXPECT_THAT(Find("<call>", {{0, 2, true}, {3, 6, true}}), IsEmpty());
  EXPECT_THAT(Find("ab<end>", std::vector<TextSpan>()), IsEmpty());
}

TEST_F(SpecialTokensTest, FindId) {
  EXPECT_EQ(tokens_.FindId("<end>"), 1);
  EXPECT_EQ(tokens_.FindId("abab"), 5);
  EXPECT_EQ(tokens_.FindId("<end"), -1);
  EXPECT_EQ(tokens_.FindId("<end>>"), -1);
  EXPECT_EQ(tokens_.FindId(""), -1);
  EXPECT_EQ(SpecialTokens().FindId("a"), -1);
}

// A token that is an end of another is found where the other may not be, or loses to a third.
TEST(SpecialTokensOrderTest, ShorterTokensWhereLongerOnesAreNot) {
  const SpecialTokens tokens(std::vector<SpecialToken>{
      {"<|a|>b", 1, /*is_control=*/true}, {"|>b", 2}, {"b", 3}, {"xx<|a|>", 4}});
  const auto find = [&](std::string_view text, bool allows_control) {
    return Find(tokens, text, {{0, text.size(), allows_control}});
  };
  EXPECT_THAT(find("<|a|>b", true), ElementsAre("1@0"));
  EXPECT_THAT(find("<|a|>b", false), ElementsAre("2@3"));
  EXPECT_THAT(find("xx<|a|>b", true), ElementsAre("4@0", "3@7"));
}

TEST(SpecialTokensOrderTest, OfEqualLengthTheLowerIdThenTheLeftmost) {
  const SpecialTokens tokens(std::vector<SpecialToken>{{"ab", 2}, {"bc", 1}, {"cc", 3}});
  EXPECT_THAT(Find(tokens, "abcab", {{0, 5, false}}), ElementsAre("1@1", "2@3"));
  EXPECT_THAT(Find(tokens, "ccc", {{0, 3, false}}), ElementsAre("3@0"));
}

TEST(SpecialTokensSpaceTest, TakesTheWhiteSpaceBehind) {
  const SpecialTokens tokens(std::vector<SpecialToken>{
      {"<s>", 1, true, /*takes_space_after=*/true}, {"<t>", 2, true}, {" ", 3}, {"\n  <t>", 4}});
  const auto find = [&](std::string_view text) {
    return Find(tokens, text, {{0, text.size(), true}});
  };
  EXPECT_THAT(find("<s> \n x"), ElementsAre("1@0-6"));
  EXPECT_THAT(find("<s>  <t> "), ElementsAre("1@0-5", "2@5", "3@8-9"));
  // U+0085 and U+00A0 are not taken.
  EXPECT_THAT(find("<s>\t\u0085 "), ElementsAre("1@0", "3@6-7"));
  EXPECT_EQ(tokens.FindAll("<s>\t\v\f\r\nx", std::vector<TextSpan>{{0, 9, true}})[0].end, 8);
  // A longer token was taken before.
  EXPECT_THAT(find("<s> \n  <t>"), ElementsAre("1@0-4", "4@4"));
  // The white space may be another's.
  EXPECT_THAT(Find(tokens, "<s>  x", {{0, 3, true}, {3, 6, false}}), ElementsAre("1@0-5"));
  EXPECT_THAT(find("<s>"), ElementsAre("1@0"));
}

// By the definition: takes the first of all places of all tokens that is free, longest first.
std::vector<SpecialTokenMatch> FindPlainly(const std::vector<SpecialToken>& tokens,
                                           std::string_view text,
                                           const std::vector<TextSpan>& spans) {
  struct Place {
    size_t begin;
    const SpecialToken* token;
  };
  std::vector<Place> places;
  for (const SpecialToken& token : tokens) {
    for (size_t begin = 0; begin + token.text.size() <= text.size(); ++begin) {
      if (!text.substr(begin).starts_with(token.text)) continue;
      const size_t end = begin + token.text.size();
      const bool in_one = std::ranges::any_of(spans, [&](const TextSpan& span) {
        return span.allows_control && span.begin <= begin && end <= span.end;
      });
      if (in_one || !token.is_control) places.push_back({begin, &token});
    }
  }
  std::ranges::sort(places, {}, [](const Place& place) {
    return std::tuple(-static_cast<int>(place.token->text.size()), place.token->id, place.begin);
  });
  std::vector<bool> taken(text.size());
  std::vector<SpecialTokenMatch> found;
  for (const Place& place : places) {
    size_t end = place.begin + place.token->text.size();
    if (std::any_of(taken.begin() + place.begin, taken.begin() + end, std::identity())) continue;
    while (place.token->takes_space_after && end < text.size() && !taken[end] && text[end] == ' ') {
      ++end;
    }
    std::fill(taken.begin() + place.begin, taken.begin() + end, true);
    found.push_back({place.begin, end, place.token->id});
  }
  std::ranges::sort(found, {}, &SpecialTokenMatch::begin);
  return found;
}

TEST(SpecialTokensRandomTest, AsByTheDefinition) {
  std::mt19937_64 random(7);
  const auto letters = [&](int most) {
    std::string text(1 + random() % most, ' ');
    for (char& c : text) c = "ab "[random() % 3];
    return text;
  };
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::string> texts;
    for (auto n = random() % 8; n > 0; --n) texts.push_back(letters(5));
    std::ranges::sort(texts);
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    std::ranges::shuffle(texts, random);
    std::vector<SpecialToken> tokens;
    for (const std::string& text : texts) {
      tokens.push_back({text, static_cast<int32_t>(tokens.size()), random() % 2 == 0,
                        /*takes_space_after=*/random() % 4 == 0});
    }
    const std::string text = letters(30);
    // The spans adjoin and hold all of the text.
    std::vector<TextSpan> spans;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.size(), begin + 1 + random() % 12);
      spans.push_back({begin, end, random() % 2 == 0});
      begin = end;
    }
    const auto show = [](const std::vector<SpecialTokenMatch>& matches) {
      std::string shown;
      for (const SpecialTokenMatch& match : matches) {
        shown += std::to_string(match.id) + "@" + std::to_string(match.begin) + "-" +
                 std::to_string(match.end) + " ";
      }
      return shown;
    };
    ASSERT_EQ(show(SpecialTokens(tokens).FindAll(text, spans)),
              show(FindPlainly(tokens, text, spans)))
        << ::testing::PrintToString(text) << ::testing::PrintToString(texts);
  }
}

}  // namespace
}  // namespace orcd
