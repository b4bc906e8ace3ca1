#include "runtime/constraint/schema_strings.h"

#include <re2/re2.h>

#include <string>

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(SchemaStringsTest, MatchesNamesOfHosts) {
  const RE2 host(PatternOfFormat("hostname"));
  const std::string long_label(63, 'a');
  std::string two_labels = long_label;
  two_labels.append(".").append(long_label);
  for (const std::string& text :
       {std::string("a"), std::string("a-b"), std::string("a-bc"), std::string("ab-c.9"),
        std::string("a--b"), std::string("abc--d"), long_label, two_labels}) {
    EXPECT_TRUE(RE2::PartialMatch(text, host)) << text;
  }
  for (const std::string& text :
       {std::string(), std::string("-a"), std::string("a-"), std::string("a."), std::string(".a"),
        std::string("xn--x"), std::string("xn--"), std::string("ab--"), std::string("a_b"),
        long_label + "a"}) {
    EXPECT_FALSE(RE2::PartialMatch(text, host)) << text;
  }
  EXPECT_EQ(MaxLengthOfFormat("hostname"), 253u);
  EXPECT_EQ(MaxLengthOfFormat("date"), 0u);
}

TEST(SchemaStringsTest, KnowsFormats) {
  EXPECT_EQ(FormatSupportOf("uuid"), FormatSupport::kByLibrary);
  EXPECT_EQ(FormatSupportOf("date"), FormatSupport::kByPattern);
  EXPECT_EQ(FormatSupportOf("uri-reference"), FormatSupport::kUnsupported);
  EXPECT_EQ(FormatSupportOf("password"), FormatSupport::kAnnotation);
  EXPECT_EQ(FormatSupportOf(""), FormatSupport::kAnnotation);
}

TEST(SchemaStringsTest, MatchesExactlyTheDates) {
  const RE2 date(PatternOfFormat("date"));
  const auto is_date = [&](const std::string& text) { return RE2::PartialMatch(text, date); };
  const auto two = [](int n) { return std::string(n < 10 ? "0" : "") + std::to_string(n); };
  for (const int year : {1, 4, 100, 400, 1900, 1904, 1999, 2000, 2023, 2024, 2100, 9999}) {
    const std::string digits = std::to_string(year);
    const std::string prefix = std::string(4 - digits.size(), '0') + digits + "-";
    const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    const int days[] = {31, is_leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    for (int month = 0; month <= 13; ++month) {
      for (int day = 0; day <= 32; ++day) {
        const bool exists = month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1];
        const std::string text = prefix + two(month) + "-" + two(day);
        EXPECT_EQ(is_date(text), exists) << text;
      }
    }
  }
  EXPECT_FALSE(is_date("0000-01-01"));
  EXPECT_FALSE(is_date("2024-1-1"));
  EXPECT_FALSE(is_date(" 2024-01-01"));
  EXPECT_FALSE(is_date("2024-01-01x"));
}

TEST(SchemaStringsTest, MatchesTimes) {
  const RE2 time(PatternOfFormat("time"));
  for (const char* text : {"00:00:00Z", "23:59:59.123z", "12:30:01+05:30"}) {
    EXPECT_TRUE(RE2::PartialMatch(text, time)) << text;
  }
  for (const char* text : {"24:00:00Z", "23:59:60Z", "12:30:01", "12:30:01.Z", "12:30:01+24:00"}) {
    EXPECT_FALSE(RE2::PartialMatch(text, time)) << text;
  }
  const RE2 date_time(PatternOfFormat("date-time"));
  EXPECT_TRUE(RE2::PartialMatch("2024-02-29T10:00:00Z", date_time));
  EXPECT_TRUE(RE2::PartialMatch("2023-12-31t10:00:00.5-01:00", date_time));
  EXPECT_FALSE(RE2::PartialMatch("2023-02-29T10:00:00Z", date_time));
  EXPECT_FALSE(RE2::PartialMatch("2024-02-29 10:00:00Z", date_time));
}

TEST(SchemaStringsTest, KnowsWhatOnlyEscapesWrite) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view text : {"a\0"sv, "\v"sv, "\x1f"sv, "é\x7f"sv}) {
    EXPECT_TRUE(NeedsUnicodeEscape(text)) << text;
  }
  for (const std::string_view text : {""sv, "\b\f\n\r\t\"\\"sv, "é\u0080 ~"sv}) {
    EXPECT_FALSE(NeedsUnicodeEscape(text)) << text;
  }
}

TEST(SchemaStringsTest, DecodesPointers) {
  EXPECT_EQ(DecodePointerToken("a~1b~0%25%C3%A9"), "a/b~%é");
  EXPECT_EQ(DecodePointerToken(""), "");
  EXPECT_EQ(DecodePointerToken("%2"), std::nullopt);
  EXPECT_EQ(DecodePointerToken("%zz"), std::nullopt);
  EXPECT_EQ(DecodePointerToken("~"), std::nullopt);
  EXPECT_EQ(DecodePointerToken("~2"), std::nullopt);
  EXPECT_EQ(ListIndex("12"), 12u);
  EXPECT_EQ(ListIndex(""), std::nullopt);
  EXPECT_EQ(ListIndex("-1"), std::nullopt);
  EXPECT_EQ(ListIndex("9999999999"), std::nullopt);
}

}  // namespace
}  // namespace orcd
