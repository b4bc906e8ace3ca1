#include "runtime/text/special_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SpecialTokensTest : public ::testing::Test {
 protected:
  SpecialTokensTest() {
    tokens_.Add("<end>", 1, /*is_control=*/true);
    tokens_.Add("<call>", 2, /*is_control=*/false);
    tokens_.Add("ab", 3, /*is_control=*/false);
    tokens_.Add("bcd", 4, /*is_control=*/false);
    tokens_.Add("abab", 5, /*is_control=*/false);
  }

  // The matches, as `id@begin`.
  std::vector<std::string> Find(std::string_view text, const std::vector<TextSpan>& spans) const {
    std::vector<std::string> found;
    for (const SpecialTokenMatch& match : tokens_.FindAll(text, spans)) {
      found.push_back(std::to_string(match.id) + "@" + std::to_string(match.begin));
    }
    return found;
  }
  std::vector<std::string> Find(std::string_view text, bool allows_control) const {
    return Find(text, {{0, text.size(), allows_control}});
  }

  SpecialTokens tokens_;
};

TEST_F(SpecialTokensTest, ControlOnlyWhereAllowed) {
  EXPECT_THAT(Find("x<end><call>", true), ElementsAre("1@1", "2@6"));
  EXPECT_THAT(Find("x<end><call>", false), ElementsAre("2@6"));
  EXPECT_THAT(Find("<end><end><end>", {{0, 5, true}, {5, 10, false}, {10, 15, true}}),
              ElementsAre("1@0", "1@10"));
  EXPECT_THAT(Find("", true), IsEmpty());
  EXPECT_THAT(Find("<en", true), IsEmpty());
}

TEST_F(SpecialTokensTest, LongestFirst) {
  EXPECT_THAT(Find("abcd", true), ElementsAre("4@1"));
  EXPECT_THAT(Find("ababab", true), ElementsAre("5@0", "3@4"));
  EXPECT_THAT(Find("abababcd", true), ElementsAre("5@0", "4@5"));
}

TEST_F(SpecialTokensTest, NeverOverSpans) {
  EXPECT_THAT(Find("<end>", {{0, 3, true}, {3, 5, true}}), IsEmpty());
  EXPECT_THAT(Find("<end>", {{0, 3, true}, {3, 5, false}}), IsEmpty());
  EXPECT_THAT(Find("abab", {{0, 2, false}, {2, 4, true}}), ElementsAre("3@0", "3@2"));
  EXPECT_THAT(Find("ab<end>", std::vector<TextSpan>()), IsEmpty());
}

TEST_F(SpecialTokensTest, FindId) {
  EXPECT_EQ(tokens_.FindId("<end>"), 1);
  EXPECT_EQ(tokens_.FindId("<end"), -1);
  EXPECT_EQ(tokens_.FindId(""), -1);
}

}  // namespace
}  // namespace orcd
