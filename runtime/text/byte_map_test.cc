#include "runtime/text/byte_map.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace orcd {
namespace {

TEST(ByteMapTest, KnownSpellings) {
  EXPECT_EQ(SpellByte('a'), "a");
  EXPECT_EQ(SpellByte(' '), "Ġ");
  EXPECT_EQ(SpellByte('\n'), "Ċ");
  EXPECT_EQ(SpellByte(0x00), "Ā");
  EXPECT_EQ(SpellByte(0x7E), "~");
  EXPECT_EQ(SpellByte(0x7F), "ġ");
  EXPECT_EQ(SpellByte(0xA0), "ł");
  EXPECT_EQ(SpellByte(0xA1), "¡");
  EXPECT_EQ(SpellByte(0xAC), "¬");
  EXPECT_EQ(SpellByte(0xAD), "Ń");
  EXPECT_EQ(SpellByte(0xFF), "ÿ");
}

TEST(ByteMapTest, EveryByteComesBack) {
  std::set<std::string> spellings;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = SpellByte(static_cast<uint8_t>(byte));
    EXPECT_TRUE(spellings.insert(spelling).second) << byte;
    EXPECT_EQ(UnspellBytes(spelling), std::string(1, static_cast<char>(byte)));
  }
}

TEST(ByteMapTest, NotSpellings) {
  EXPECT_EQ(UnspellBytes("Ġhello"), " hello");
  EXPECT_EQ(UnspellBytes(""), "");
  EXPECT_EQ(UnspellBytes("a b"), std::nullopt);
  EXPECT_EQ(UnspellBytes("中"), std::nullopt);
  EXPECT_EQ(UnspellBytes("\u00AD"), std::nullopt);
  EXPECT_EQ(UnspellBytes("\u0144"), std::nullopt);  // one past the last
  EXPECT_EQ(UnspellBytes("a\xFF"), std::nullopt);
}

}  // namespace
}  // namespace orcd
