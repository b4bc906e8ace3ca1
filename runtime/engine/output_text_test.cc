#include "runtime/engine/output_text.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(OutputTextTest, WithoutStopStringsTextComesAtOnce) {
  OutputText text({});
  EXPECT_EQ(text.Append("Hello"), "Hello");
  EXPECT_EQ(text.Append(", world"), ", world");
  EXPECT_EQ(text.Finish(), "");
  EXPECT_FALSE(text.stopped());
}

TEST(OutputTextTest, CharactersStayWhole) {
  OutputText text({});
  EXPECT_EQ(text.Append("a\xF0\x9F"), "a");
  EXPECT_EQ(text.Append("\xA6\x99"), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(text.Append("\xE2\x82"), "");
  EXPECT_EQ(text.Finish(), "\xEF\xBF\xBD");
}

TEST(OutputTextTest, StopStringEndsTextBeforeIt) {
  OutputText text({"\nUser:"});
  EXPECT_EQ(text.Append("fine\n"), "fine");
  EXPECT_EQ(text.Append("User"), "");
  EXPECT_EQ(text.Append(": and"), "");
  ASSERT_TRUE(text.stopped());
  EXPECT_EQ(*text.stopped(), "\nUser:");
}

TEST(OutputTextTest, TextThatCompletesNoStopStringIsReleased) {
  OutputText text({"aab"});
  EXPECT_EQ(text.Append("a"), "");
  EXPECT_EQ(text.Append("a"), "");
  EXPECT_EQ(text.Append("a"), "a");
  EXPECT_EQ(text.Append("c"), "aac");
  EXPECT_EQ(text.Append("xa"), "x");
  EXPECT_EQ(text.Finish(), "a");
}

TEST(OutputTextTest, TheStopStringThatBeginsFirstWins) {
  OutputText text({"world", "lo w"});
  EXPECT_EQ(text.Append("hello world"), "hel");
  EXPECT_EQ(*text.stopped(), "lo w");
}

TEST(OutputTextTest, OfTwoThatBeginTogetherTheFirstNamedWins) {
  OutputText text({"stop", "stopping"});
  EXPECT_EQ(text.Append("x stopping"), "x ");
  EXPECT_EQ(*text.stopped(), "stop");
}

TEST(OutputTextTest, StopStringsCountFromMinTokensOn) {
  OutputText text({"ab"}, 2);
  EXPECT_EQ(text.Append("ab"), "ab");
  EXPECT_EQ(text.Append("ab"), "ab") << "the last of min_tokens does not end it either";
  EXPECT_EQ(text.Append("cab"), "c");
  ASSERT_TRUE(text.stopped());
}

TEST(OutputTextTest, AStopStringMayBeginBeforeMinTokens) {
  OutputText text({"abab"}, 3);
  EXPECT_EQ(text.Append("xa"), "x");
  EXPECT_EQ(text.Append("ba"), "");
  EXPECT_EQ(text.Append("ba"), "ab") << "one that ends here does not count, and may begin another";
  EXPECT_EQ(text.Append("bz"), "") << "the text before it was given out";
  ASSERT_TRUE(text.stopped());
}

TEST(OutputTextTest, TheEndAddsNothingThatStopsBeforeMinTokens) {
  OutputText text({"\xEF\xBF\xBD"}, 1);
  EXPECT_EQ(text.Append("a\xE2\x82"), "a");
  EXPECT_EQ(text.Finish(), "\xEF\xBF\xBD");
  EXPECT_FALSE(text.stopped());
}

// Compares with a search of the whole text: after each token beyond min_tokens, for stop strings
// that end in that token's characters.
TEST(OutputTextTest, AnyCutAndAnyMinTokensFindTheSameEnd) {
  std::mt19937 random(2);
  int stopped = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> tokens(10);
    for (std::string& token : tokens) {
      for (uint32_t n = random() % 4; n > 0; --n) token += random() % 3 == 0 ? "b" : "a";
    }
    std::vector<std::string> stops(1 + random() % 2);
    for (std::string& stop : stops) {
      for (uint32_t n = 1 + random() % 4; n > 0; --n) stop += random() % 3 == 0 ? "b" : "a";
    }
    const size_t min_tokens = random() % 6;
    std::string whole;
    size_t end = std::string::npos;
    for (size_t i = 0; i < tokens.size() && end == std::string::npos; ++i) {
      const size_t before = whole.size();
      whole += tokens[i];
      if (i < min_tokens) continue;
      for (const std::string& stop : stops) {
        for (size_t at = 0; at + stop.size() <= whole.size(); ++at) {
          if (whole.compare(at, stop.size(), stop) == 0 && at + stop.size() > before) {
            end = std::min(end, at);
          }
        }
      }
    }

    OutputText text(stops, static_cast<int>(min_tokens));
    std::string got;
    for (const std::string& token : tokens) {
      got += text.Append(token);
      if (text.stopped()) break;
    }
    EXPECT_EQ(text.stopped().has_value(), end != std::string::npos) << round;
    if (!text.stopped()) got += text.Finish();
    stopped += text.stopped() ? 1 : 0;
    ASSERT_EQ(got, whole.substr(0, end)) << "of " << whole << " from token " << min_tokens;
  }
  EXPECT_GT(stopped, 1000);
}

// However the text is cut into tokens, the output is the text up to the first stop string.
TEST(OutputTextTest, AnyCutGivesTheSameText) {
  std::mt19937 random(1);
  const std::vector<std::string> alphabet = {"a", "b", "\n", "é", "🦙"};
  for (int round = 0; round < 2000; ++round) {
    std::string whole;
    for (int i = 0; i < 12; ++i) whole += alphabet[random() % alphabet.size()];
    std::vector<std::string> stops;
    for (int i = 0; i < 2; ++i) {
      std::string stop;
      for (int j = 0; j < 3; ++j) stop += alphabet[random() % alphabet.size()];
      stops.push_back(stop);
    }
    const std::string expected =
        whole.substr(0, std::min(whole.find(stops[0]), whole.find(stops[1])));

    OutputText text(stops);
    std::string got;
    for (size_t pos = 0; pos < whole.size() && !text.stopped();) {
      const size_t n = 1 + random() % 4;
      got += text.Append(std::string_view(whole).substr(pos, n));
      EXPECT_EQ(expected.substr(0, got.size()), got);
      pos += n;
    }
    if (!text.stopped()) got += text.Finish();
    EXPECT_EQ(got, expected) << "of " << whole << " with " << stops[0] << " and " << stops[1];
  }
}

}  // namespace
}  // namespace orcd
