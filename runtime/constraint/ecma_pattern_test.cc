#include "runtime/constraint/ecma_pattern.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

std::string Translate(std::string_view pattern) {
  const EcmaPattern read = ReadEcmaPattern(pattern);
  EXPECT_EQ(read.fault, "") << pattern;
  return read.text;
}

TEST(EcmaPatternTest, LeavesWhatBothSyntaxesRead) {
  for (const char* pattern : {"", "abc", "^a|b$", "a*b+c?d{2}e{2,}f{2,3}", "[a-c_]", "é日+",
                              R"(\.\*\(\[\{\^\$\\)", R"(\t\n\v\f\r)", "<a>#&~-"}) {
    EXPECT_EQ(Translate(pattern), pattern);
  }
}

TEST(EcmaPatternTest, EscapesWhatOnlyRustReadsInBrackets) {
  EXPECT_EQ(Translate("[[]"), R"([\[])");
  EXPECT_EQ(Translate("[a&&b]"), R"([a\&\&b])");
  EXPECT_EQ(Translate("a&&b~~--[~a]"), R"(a&&b~~--[\~a])");
  EXPECT_EQ(Translate("[+--]"), R"([+-\-])");
  EXPECT_EQ(Translate("[-a-]"), R"([\-a\-])");
  EXPECT_EQ(Translate(R"([\]\[a]b)"), R"([\]\[a]b)");
  EXPECT_EQ(Translate(R"([\b\/\-.])"), R"([\x{8}/\-.])");
}

TEST(EcmaPatternTest, MatchesWhatAllReadingsOfAClassDo) {
  EXPECT_EQ(Translate(R"(\d\D)"), R"([0-9][^\p{Nd}])");
  EXPECT_EQ(Translate(R"([^\d][^\D_])"), R"([^[\p{Nd}]\x{0}][^[^0-9]_\x{0}])");
  EXPECT_EQ(Translate(R"([\w.-])"), R"([[0-9A-Za-z_].\-])");
  EXPECT_EQ(Translate(R"([+-\d])"), R"([+\-[0-9]])");
  EXPECT_EQ(Translate(R"([\d-z])"), R"([[0-9]\-z])");
  EXPECT_EQ(Translate(R"([\\d]\\w)"), R"([\\d]\\w)");
  EXPECT_EQ(Translate("."), R"([^\n\r\u{2028}\u{2029}])");
  EXPECT_EQ(Translate("[.]"), "[.]");
  EXPECT_THAT(Translate(R"(\s)"), HasSubstr("\\u{A0}"));
  EXPECT_THAT(Translate(R"(\s)"), Not(HasSubstr("\\u{FEFF}")));
  EXPECT_THAT(Translate(R"(\S)"), HasSubstr("\\u{FEFF}"));
  EXPECT_THAT(Translate(R"([^\s])"), HasSubstr("\\u{FEFF}"));
}

TEST(EcmaPatternTest, MatchesWhatAnyReadingOfAClassDoes) {
  const auto largest = [](std::string_view pattern) {
    return ReadEcmaPattern(pattern, EcmaReading::kLargest).text;
  };
  EXPECT_EQ(largest(R"(\d\D)"), R"([\p{Nd}][^0-9])");
  EXPECT_EQ(largest(R"([^\d][^\D_])"), R"([^[0-9]\x{0}][^[^\p{Nd}]_\x{0}])");
  EXPECT_EQ(largest(R"(\W)"), R"([^0-9A-Za-z_])");
  EXPECT_EQ(largest("."), R"([^\n])");
  EXPECT_THAT(largest(R"(\s)"), HasSubstr("\\u{FEFF}"));
  EXPECT_EQ(largest("^a[bc]{2}$"), "^a[bc]{2}$");
}

TEST(EcmaPatternTest, NoClassHasTheNullCharacter) {
  EXPECT_EQ(Translate("[^x-z]"), R"([^x-z\x{0}])");
  EXPECT_EQ(Translate(R"(\p{L}\P{Script=Greek})"),
            R"([\p{L}--[\x{0}]][\P{Script=Greek}--[\x{0}]])");
  EXPECT_EQ(Translate(R"([a\P{P}])"), R"([a\P{P}--[\x{0}]])");
  EXPECT_EQ(Translate(R"([\0-!])"), R"([\x{0}-!--[\x{0}]])");
  EXPECT_EQ(Translate(std::string_view("[\0-!]", 5)), R"([\x{0}-!--[\x{0}]])");
  EXPECT_EQ(Translate(R"(\0|\x00)"), R"([\x{0}--[\x{0}]]|[\x{0}--[\x{0}]])");
  EXPECT_EQ(Translate(std::string_view("\0", 1)), R"([\x{0}--[\x{0}]])");
}

TEST(EcmaPatternTest, TranslatesSpellings) {
  EXPECT_EQ(Translate("(a)(?:b)(?<name>c)(?P<stop>d)(?<$é_1>e)"), "(?:a)(?:b)(?:c)(?:d)(?:e)");
  EXPECT_EQ(Translate("a*?b+?c??d{1,2}?"), "a*b+c?d{1,2}");
  EXPECT_EQ(Translate("a{b}c{,}]{"), R"(a\{b\}c\{,\}\]\{)");
  EXPECT_EQ(Translate(R"(\/\-\_\<\>\é\ )"), "/-_<>é ");
  EXPECT_EQ(Translate(R"(\x41\u0042\u{1F600}\uD83D\uDE00)"), R"(\x{41}\x{42}\x{1f600}\x{1f600})");
  EXPECT_EQ(Translate(R"(\cJ\ca)"), R"(\x{a}\x{1})");
}

TEST(EcmaPatternTest, RefusesByName) {
  struct Refused {
    const char* pattern;
    const char* fault;
    bool is_invalid;
  };
  const Refused cases[] = {
      {"a(?=b)", "look-around, as in `(?=`", false},
      {"(?<!b)a", "look-around, as in `(?<!`", false},
      {R"(\bword\b)", "`\\b`", false},
      {R"((a)\1)", "back references", false},
      {R"((?<n>a)\k<n>)", "back references", false},
      {"(?i)a", "flags", false},
      {"(?i:a)", "flags", false},
      {"[]a]", "`[]`", false},
      {"[^]", "`[^]`", false},
      {"a{,3}", "`{,3}`", false},
      {"a{1,9999999999}", "repeats too often", false},
      {R"(\uD83D)", "surrogate", false},
      {R"(\uD83D\u0041)", "surrogate", false},
      {"(a", "not closed", true},
      {"a)", "closes no group", true},
      {"(?<a", "name", true},
      {"(?<>a)", "identifier", true},
      {"(?<1a>a)", "identifier", true},
      {"(?<a b>a)", "identifier", true},
      {"(?<a>a)(?P<a>b)", "the same name", false},
      {"[a", "not closed", true},
      {"*a", "nothing to repeat", true},
      {"a**", "nothing to repeat", true},
      {"a*+", "nothing to repeat", true},
      {"a{2}{3}", "nothing to repeat", true},
      {"^*", "nothing to repeat", true},
      {"(|*)", "nothing to repeat", true},
      {"a{3,2}", "out of order", true},
      {"a\\", "ends with a backslash", true},
      {R"(\a)", "`\\a`", true},
      {R"(\A)", "`\\A`", true},
      {R"(\z)", "`\\z`", true},
      {R"([\B])", "`\\B`", true},
      {R"(\01)", "`\\0`", true},
      {R"([\1])", "`\\1`", true},
      {R"(\x4)", "too few digits", true},
      {R"(\u12)", "too few digits", true},
      {R"(\u{110000})", "beyond the last", true},
      {R"(\u{12)", "not closed", true},
      {R"(\c1)", "`\\c`", true},
      {R"(\pL)", "braces", true},
      {R"(\p{^L})", "braces", true},
  };
  for (const Refused& c : cases) {
    const EcmaPattern read = ReadEcmaPattern(c.pattern);
    EXPECT_THAT(read.fault, HasSubstr(c.fault)) << c.pattern << " is read as " << read.text;
    EXPECT_EQ(read.is_invalid, c.is_invalid) << c.pattern;
  }
}

}  // namespace
}  // namespace orcd
