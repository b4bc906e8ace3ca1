#include "runtime/text/unicode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/utf8.h"
#include "runtime/text/random_text_for_test.h"
#include "runtime/text/unicode_tables.h"

namespace orcd {
namespace {

bool IsSurrogate(char32_t codepoint) { return codepoint >= 0xD800 && codepoint <= 0xDFFF; }

TEST(DecodeUtf8Test, EveryCodepoint) {
  for (char32_t codepoint = 0; codepoint <= 0x10FFFF; ++codepoint) {
    if (IsSurrogate(codepoint)) continue;
    const std::string text = ToUtf8(codepoint) + "\x80";
    const Utf8Char c = DecodeUtf8(text, 0);
    ASSERT_TRUE(c.valid) << std::hex << static_cast<uint32_t>(codepoint);
    ASSERT_EQ(c.codepoint, codepoint);
    ASSERT_EQ(c.length, text.size() - 1);
  }
}

TEST(DecodeUtf8Test, NotCharacters) {
  for (const std::string_view text : {
           "\x80",
           "\xBF",
           "\xFE",
           "\xFF",  // no lead bytes
           "\xC0\x80",
           "\xC1\xBF",
           "\xE0\x9F\xBF",      // overlong
           "\xF0\x8F\xBF\xBF",  //
           "\xED\xA0\x80",
           "\xED\xBF\xBF",  // surrogates
           "\xF4\x90\x80\x80",
           "\xF5\x80\x80\x80",  // past U+10FFFF
           "\xC3",
           "\xE4\xB8",
           "\xF0\x9F\x98",  // cut off by the end
           "\xC3x",
           "\xE4\xB8x",
           "\xF0\x9F\x98x",
           "\xE4\xE4",  // cut off by the next byte
       }) {
    const Utf8Char c = DecodeUtf8(text, 0);
    EXPECT_FALSE(c.valid) << ::testing::PrintToString(text);
    EXPECT_EQ(c.length, 1);
    EXPECT_EQ(c.codepoint, kReplacementCodepoint);
  }
  EXPECT_TRUE(DecodeUtf8(kReplacementCharacter, 0).valid);
}

TEST(ReplaceInvalidUtf8Test, EachBadByteAlone) {
  const std::string bad(kReplacementCharacter);
  EXPECT_EQ(ReplaceInvalidUtf8(""), "");
  EXPECT_EQ(ReplaceInvalidUtf8("long enough to be skipped, é, 中"),
            "long enough to be skipped, é, 中");
  EXPECT_EQ(ReplaceInvalidUtf8("a\xE4\xB8z\xFF"), "a" + bad + bad + "z" + bad);
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), bad + bad + bad);
  EXPECT_EQ(FindInvalidUtf8("0123456789\xC3"), 10);
  EXPECT_EQ(FindInvalidUtf8("0123456789\xC3\xA9"), 12);
}

TEST(TruncatedUtf8Test, PrefixesOfCharacters) {
  for (const std::string_view whole : {"é", "中", "\xED\x9F\xBF", "😀", "\xF4\x8F\xBF\xBF"}) {
    for (size_t length = 1; length < whole.size(); ++length) {
      const std::string prefix(whole.substr(0, length));
      EXPECT_TRUE(IsTruncatedUtf8Char(prefix));
      EXPECT_EQ(TruncatedPrefixLength(prefix + "a"), length);
      EXPECT_FALSE(IsTruncatedUtf8Char(prefix + "a"));
    }
    EXPECT_FALSE(IsTruncatedUtf8Char(whole));
  }
  EXPECT_FALSE(IsTruncatedUtf8Char(""));
  EXPECT_FALSE(IsTruncatedUtf8Char("\xE0\x80"));
  EXPECT_FALSE(IsTruncatedUtf8Char("\xED\xA0"));
  EXPECT_EQ(TruncatedPrefixLength("\xE0\x80\x80"), 1);
  EXPECT_EQ(TruncatedPrefixLength("\x80\x80"), 1);
}

bool Contains(std::string_view property, char32_t codepoint) {
  for (const CodepointRange& range : CodepointsOf(property)) {
    if (codepoint >= range.first && codepoint <= range.last) return true;
  }
  return false;
}

TEST(CodepointsOfTest, OneOfEachKind) {
  struct Members {
    std::string_view property;
    std::u32string_view codepoints;
  };
  for (const auto& [property, codepoints] : {
           Members{"L", U"azAZªµÀÿʰבक中ꙮﬁ𝒜𠀀ǅ"},
           Members{"Lu", U"AZÀМ𝒜"},
           Members{"Ll", U"azµÿмﬁ"},
           Members{"Lt", U"ǅ"},
           Members{"Lm", U"ʰ々"},
           Members{"Lo", U"ªבक中𠀀"},
           Members{"M", U"\u0301\u0903\u20DD"},
           Members{"N", U"09²½٣Ⅷ①𝟘"},
           Members{"P", U"_'!「。"},
           Members{"S", U"~$+€😀"},
           Members{"White_Space", U" \u0085\u3000"},
       }) {
    for (const char32_t codepoint : codepoints) {
      EXPECT_TRUE(Contains(property, codepoint)) << property << static_cast<uint32_t>(codepoint);
    }
  }
  // These have none of the properties: U+001C and U+200B are no white space.
  for (const char32_t codepoint :
       std::u32string_view(U"\u00AD\u001C\u200B\uFEFF\uE000\U0010FFFF")) {
    EXPECT_FALSE(Contains("", codepoint)) << static_cast<uint32_t>(codepoint);
  }
  EXPECT_FALSE(Contains("", 0xFFFF));
  EXPECT_TRUE(CodepointsOf("Xx").empty());
}

TEST(CodepointsOfTest, WhiteSpaceIsTheUnicodeProperty) {
  const std::vector<CodepointRange> white_space = {
      {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  EXPECT_EQ(CodepointsOf("White_Space"), white_space);
}

// Readers of regular expressions take neither descending nor empty ranges.
TEST(CodepointsOfTest, RangesAscendWithGapsBetween) {
  for (const std::string_view property : {"L", "Lu", "Ll", "M", "N", "P", "S", "White_Space"}) {
    const std::vector<CodepointRange> ranges = CodepointsOf(property);
    ASSERT_FALSE(ranges.empty());
    for (size_t i = 0; i < ranges.size(); ++i) {
      ASSERT_LE(ranges[i].first, ranges[i].last);
      if (i > 0) {
        ASSERT_GT(ranges[i].first, ranges[i - 1].last + 1) << property;
      }
    }
  }
}

TEST(UnicodePropertiesTest, NoCharacterIsInTwoCategories) {
  std::vector<CodepointRange> all;
  for (const UnicodeProperty& property : UnicodeProperties()) {
    if (property.name == "White_Space") continue;
    all.insert(all.end(), property.codepoints.begin(), property.codepoints.end());
  }
  std::ranges::sort(all, {}, &CodepointRange::first);
  for (size_t i = 1; i < all.size(); ++i) ASSERT_GT(all[i].first, all[i - 1].last);
}

}  // namespace
}  // namespace orcd
