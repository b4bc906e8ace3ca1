#include "runtime/constraint/rule_error.h"

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

TEST(RuleErrorTest, NamesReasonAndField) {
  using absl::StatusCode;
  struct Case {
    absl::Status status;
    StatusCode code;
    const char* reason;
  };
  const Case cases[] = {
      {InvalidRule("a.b", "bad\nworse"), StatusCode::kInvalidArgument, "CONSTRAINT_INVALID"},
      {UnsupportedRule("a.b", "bad"), StatusCode::kInvalidArgument, "CONSTRAINT_UNSUPPORTED"},
      {UnsatisfiableRule("a.b", "bad"), StatusCode::kInvalidArgument, "CONSTRAINT_UNSATISFIABLE"},
      {RuleTooLarge("a.b", "bad"), StatusCode::kInvalidArgument, "CONSTRAINT_TOO_LARGE"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.status.code(), c.code);
    EXPECT_EQ(c.status.message(), "a.b: bad");
    EXPECT_EQ(GetErrorDetails(c.status).reason, c.reason);
    EXPECT_EQ(GetErrorDetails(c.status).field, "a.b");
  }
}

TEST(RuleErrorTest, CutsTextsToALine) {
  EXPECT_EQ(OneLine("\n  one\ttwo\r\nthree"), "one two");
  EXPECT_EQ(OneLine(""), "");
  EXPECT_EQ(OneLine("\n\n"), "");
  EXPECT_EQ(OneLine(std::string(300, 'a')), std::string(300, 'a'));
  EXPECT_EQ(OneLine(std::string(301, 'a')), std::string(297, 'a') + "…");
  for (int lead = 0; lead < 4; ++lead) {
    std::string text(lead, 'a');
    for (int i = 0; i < 1000; ++i) text += "日";
    const std::string line = OneLine(text);
    EXPECT_LE(line.size(), 300u);
    EXPECT_GE(line.size(), 297u);
    EXPECT_EQ(FindInvalidUtf8(line), line.size());
  }
  EXPECT_EQ(OneLine("a\xff\x01z"), "a\xEF\xBF\xBD z");
}

}  // namespace
}  // namespace orcd
