#include "runtime/constraint/schema_numbers.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

OrderedJson Json(const char* text) { return OrderedJson::parse(text); }

TEST(SchemaNumbersTest, ReadsWholeNumbers) {
  EXPECT_EQ(WholeNumberOf(Json("0")), 0u);
  EXPECT_EQ(WholeNumberOf(Json("3.0")), 3u);
  EXPECT_EQ(WholeNumberOf(Json("1e9")), 1'000'000'000u);
  EXPECT_EQ(WholeNumberOf(Json("18446744073709551615")), UINT64_MAX);
  for (const char* text : {"-1", "-1.0", "0.5", "1e300", "\"1\"", "true", "null"}) {
    EXPECT_EQ(WholeNumberOf(Json(text)), std::nullopt) << text;
  }
}

TEST(SchemaNumbersTest, KnowsIntegersThatDoublesRound) {
  for (const char* text :
       {"0", "-3", "9007199254740992", "9007199254740994", "-9007199254740992",
        "-9223372036854775808", "9223372036854775808", "0.1", "1e300", "\"a\""}) {
    EXPECT_TRUE(HoldsInDouble(Json(text))) << text;
  }
  for (const char* text :
       {"9007199254740993", "-9007199254740993", "9223372036854775807", "18446744073709551615"}) {
    EXPECT_FALSE(HoldsInDouble(Json(text))) << text;
  }
}

TEST(SchemaNumbersTest, CountsTheDigitsOfMultiples) {
  EXPECT_EQ(MultipleDigits(1), 1u);
  EXPECT_EQ(MultipleDigits(10), 1u);
  EXPECT_EQ(MultipleDigits(1500), 15u);
  EXPECT_EQ(MultipleDigits(1'000'000), 1000u);
}

}  // namespace
}  // namespace orcd
