#include "runtime/constraint/lark_text.h"

#include <string>

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(LarkTextTest, QuotesStrings) {
  EXPECT_EQ(LarkString(""), R"("")");
  EXPECT_EQ(LarkString("a b/é日"), R"("a b/é日")");
  EXPECT_EQ(LarkString("\"\\\n\t\x01\x7f"), R"("\"\\\u000a\u0009\u0001\u007f")");
  EXPECT_EQ(LarkString(std::string(1, '\0')), R"("\u0000")");
}

TEST(LarkTextTest, QuotesExpressions) {
  EXPECT_EQ(LarkRegex("[a-z]+"), "/[a-z]+/");
  EXPECT_EQ(LarkRegex("a/b"), R"(/a\/b/)");
  EXPECT_EQ(LarkRegex(R"(a\/b\\/)"), R"(/a\/b\\\//)");
  EXPECT_EQ(LarkRegex("a\nb\\\nc\r"), R"(/a\nb\nc\r/)");
  EXPECT_EQ(LarkRegex(R"(\d\")"), R"(/\d\"/)");
}

}  // namespace
}  // namespace orcd
