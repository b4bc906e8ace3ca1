#include "runtime/constraint/schema_numbers.h"

#include <initializer_list>

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

TEST(SchemaNumbersTest, KnowsExactBounds) {
  EXPECT_TRUE(IsExactBound(Json("9223372036854775807"), true));
  EXPECT_FALSE(IsExactBound(Json("9223372036854775807"), false));
  EXPECT_FALSE(IsExactBound(Json("9223372036854775805"), true));
  EXPECT_TRUE(IsExactBound(Json("9007199254740992"), false));
}

TEST(SchemaNumbersTest, KnowsMultiplesThatTheLibraryComputes) {
  EXPECT_EQ(MultipleInThousandths(0.001), 1u);
  EXPECT_EQ(MultipleInThousandths(0.01), 10u);
  EXPECT_EQ(MultipleInThousandths(9.999), 9999u);
  EXPECT_EQ(MultipleInThousandths(1000), 1'000'000u);
  for (const double multiple : {1001.0, 1e300, 0.0005, 1e-9, 10.001, 999.999}) {
    EXPECT_EQ(MultipleInThousandths(multiple), std::nullopt) << multiple;
  }
}

TEST(SchemaNumbersTest, KnowsSmallCommonMultiples) {
  const auto is_small = [](std::initializer_list<uint64_t> thousandths) {
    return HaveSmallCommonMultiple({thousandths.begin(), thousandths.size()});
  };
  EXPECT_TRUE(is_small({}));
  EXPECT_TRUE(is_small({7, 10, 142}));
  EXPECT_TRUE(is_small({7'000, 500}));
  EXPECT_TRUE(is_small({10'000'000, 4'000}));
  EXPECT_FALSE(is_small({10'000'000, 3'000}));
  EXPECT_FALSE(is_small({997'000, 991'000}));
}

}  // namespace
}  // namespace orcd
