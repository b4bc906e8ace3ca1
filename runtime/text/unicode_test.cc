#include "runtime/text/unicode.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

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

TEST(ClassOfTest, OneOfEachKind) {
  for (const char32_t letter : std::u32string_view(U"azAZªµÀÿʰבक中ꙮﬁ𝒜𠀀ǅ")) {
    EXPECT_EQ(ClassOf(letter), CharClass::kLetter) << static_cast<uint32_t>(letter);
  }
  for (const char32_t number : std::u32string_view(U"09²½٣Ⅷ①𝟘")) {
    EXPECT_EQ(ClassOf(number), CharClass::kNumber) << static_cast<uint32_t>(number);
  }
  // Marks (U+0301, U+0903, U+20DD) are not letters; U+001C and U+200B are not white space.
  for (const char32_t other :
       std::u32string_view(U"_'~\u00AD\u0301\u0903\u20DD€😀\u001C\u200B\uFEFF\uFFFD\uE000")) {
    EXPECT_EQ(ClassOf(other), CharClass::kOther) << static_cast<uint32_t>(other);
  }
  EXPECT_EQ(ClassOf(0x10FFFF), CharClass::kOther);
}

TEST(ClassOfTest, WhiteSpaceIsTheUnicodeProperty) {
  const std::set<char32_t> white_space = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,
                                          0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                          0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                          0x2029, 0x202F, 0x205F, 0x3000};
  for (char32_t codepoint = 0; codepoint <= 0x10FFFF; ++codepoint) {
    ASSERT_EQ(ClassOf(codepoint) == CharClass::kSpace, white_space.contains(codepoint))
        << std::hex << static_cast<uint32_t>(codepoint);
  }
}

TEST(UnicodeTablesTest, RangesAscend) {
  char32_t after_last = 0x80;
  for (const CodepointRange& range : LettersAndNumbers()) {
    ASSERT_GE(range.first, after_last);
    ASSERT_LE(range.first, range.last);
    after_last = range.last + 1;
  }
}

}  // namespace
}  // namespace orcd
