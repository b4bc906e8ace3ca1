#include "runtime/text/utf8_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include "runtime/base/utf8.h"
#include "runtime/text/random_text_for_test.h"

namespace orcd {
namespace {

const std::string kBad(kReplacementCharacter);

std::string Stream(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.Append(bytes);
  return text + stream.Finish();
}

TEST(Utf8StreamTest, HoldsBackUnfinishedCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Append("a\xF0"), "a");
  EXPECT_EQ(stream.Append("\x9F"), "");
  EXPECT_EQ(stream.Append("\x98"), "");
  EXPECT_EQ(stream.Append("\x80z"), "😀z");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8StreamTest, FinishGivesUpAndStartsAnew) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Append("a\xE4\xB8"), "a");
  EXPECT_EQ(stream.Finish(), kBad);
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Append("\xAD"), kBad);
  EXPECT_EQ(stream.Append("中"), "中");
}

// Expected texts are those of Python's bytes.decode(errors="replace").
TEST(Utf8StreamTest, BadBytes) {
  EXPECT_EQ(Stream("a\x80z"), "a" + kBad + "z");
  EXPECT_EQ(Stream("\xC0\xAF"), kBad + kBad);
  EXPECT_EQ(Stream("\xED\xA0\x80"), kBad + kBad + kBad);
  EXPECT_EQ(Stream("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);
  EXPECT_EQ(Stream("\xE4\xB8z"), kBad + "z");
  EXPECT_EQ(Stream("\xF0\x9F\x98\xE4\xB8\xAD"), kBad + "中");
  EXPECT_EQ(Stream("\xF0\x9F\x98\xF0\x9F\x98\x80"), kBad + "😀");
  EXPECT_EQ(Stream("é\xFFé"), "é" + kBad + "é");
  EXPECT_EQ(Stream(kBad), kBad);
}

// However the bytes are cut, the text is the same and every part consists of whole characters.
void ExpectSameHoweverCut(const std::string& bytes, std::string_view expected,
                          std::mt19937_64& random) {
  Utf8Stream stream;
  std::string text;
  for (size_t pos = 0; pos < bytes.size();) {
    const size_t length = std::min<size_t>(1 + random() % 4, bytes.size() - pos);
    const std::string part = stream.Append(std::string_view(bytes).substr(pos, length));
    ASSERT_EQ(FindInvalidUtf8(part), part.size());
    text += part;
    pos += length;
  }
  ASSERT_EQ(text + stream.Finish(), expected) << ::testing::PrintToString(bytes);
}

TEST(Utf8StreamTest, ValidTextComesOutAsItIs) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = RandomText(random, 30);
    ExpectSameHoweverCut(text, text, random);
  }
}

TEST(Utf8StreamTest, AnyBytesComeOutTheSameHoweverCut) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = RandomBytes(random, 24);
    ExpectSameHoweverCut(bytes, Stream(bytes), random);
  }
}

}  // namespace
}  // namespace orcd
