#include "runtime/text/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace orcd {
namespace {

using ::testing::HasSubstr;

std::string Normalize(std::string_view json) {
  const absl::StatusOr<std::string> text = NormalizeJsonObject(json);
  return text.ok() ? *text : "error: " + std::string(text.status().message());
}

// Expected texts are those of Python's json.dumps(json.loads(…), ensure_ascii=False).
TEST(NormalizeJsonObjectTest, SpacingAndOrder) {
  EXPECT_EQ(Normalize("{}"), "{}");
  EXPECT_EQ(Normalize(" {\n} "), "{}");
  EXPECT_EQ(Normalize(R"({"z":1,"a":[ ],"m":{"x":[1,[2,{}]]}})"),
            R"({"z": 1, "a": [], "m": {"x": [1, [2, {}]]}})");
  EXPECT_EQ(Normalize(R"({"a":true,"b":false,"c":null})"), R"({"a": true, "b": false, "c": null})");
  EXPECT_EQ(Normalize(R"([{}])").substr(0, 5), "error");
}

TEST(NormalizeJsonObjectTest, Strings) {
  EXPECT_EQ(Normalize(R"({"\u00e9\n":"\/\"\\\u001f\u007f\ud83d\ude00<>&'"})"),
            "{\"é\\n\": \"/\\\"\\\\\\u001f\x7F😀<>&'\"}");
}

TEST(NormalizeJsonObjectTest, Numbers) {
  const auto number = [](std::string_view written) {
    const std::string text = Normalize(R"({"n":)" + std::string(written) + "}");
    constexpr std::string_view kBefore = R"({"n": )";
    return text.starts_with(kBefore) ? text.substr(kBefore.size(), text.size() - kBefore.size() - 1)
                                     : text;
  };
  EXPECT_EQ(number("0"), "0");
  EXPECT_EQ(number("-0"), "0");
  EXPECT_EQ(number("-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(number("18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(number("18446744073709551616"), "18446744073709551616");
  EXPECT_EQ(number("-123456789012345678901234567890"), "-123456789012345678901234567890");
  EXPECT_EQ(number("0.0"), "0.0");
  EXPECT_EQ(number("-0.0"), "-0.0");
  EXPECT_EQ(number("1.0"), "1.0");
  EXPECT_EQ(number("1e0"), "1.0");
  EXPECT_EQ(number("2.50"), "2.5");
  EXPECT_EQ(number("-12.5e1"), "-125.0");
  EXPECT_EQ(number("1e15"), "1000000000000000.0");
  EXPECT_EQ(number("9999999999999998.0"), "9999999999999998.0");
  EXPECT_EQ(number("1e16"), "1e+16");
  EXPECT_EQ(number("1.5e16"), "1.5e+16");
  EXPECT_EQ(number("1e100"), "1e+100");
  EXPECT_EQ(number("0.0001"), "0.0001");
  EXPECT_EQ(number("0.00012"), "0.00012");
  EXPECT_EQ(number("0.00001"), "1e-05");
  EXPECT_EQ(number("-1.25e-7"), "-1.25e-07");
  EXPECT_EQ(number("123456.789"), "123456.789");
  EXPECT_EQ(number("5e-324"), "5e-324");
  EXPECT_EQ(number("0.1"), "0.1");
}

TEST(NormalizeJsonObjectTest, Refuses) {
  EXPECT_THAT(Normalize(""), HasSubstr("error"));
  EXPECT_THAT(Normalize("[]"), HasSubstr("a JSON object is wanted"));
  EXPECT_THAT(Normalize("1"), HasSubstr("a JSON object is wanted"));
  EXPECT_THAT(Normalize("\"{}\""), HasSubstr("a JSON object is wanted"));
  EXPECT_THAT(Normalize("{}x"), HasSubstr("syntax error"));
  EXPECT_THAT(Normalize("{} {}"), HasSubstr("syntax error"));
  EXPECT_THAT(Normalize(R"({"a":})"), HasSubstr("syntax error"));
  EXPECT_THAT(Normalize(R"({"a":1,})"), HasSubstr("syntax error"));
  EXPECT_THAT(Normalize(R"({"a":NaN})"), HasSubstr("syntax error"));
  EXPECT_THAT(Normalize("{\"a\":\"\xFF\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(Normalize(R"({"a":"\ud800"})"), HasSubstr("surrogate"));
  EXPECT_THAT(Normalize(R"({"a":1e400})"), HasSubstr("1e400"));
  EXPECT_THAT(Normalize(R"({"a":1,"b":{"a":2},"a":3})"), HasSubstr("the key \"a\" twice"));
}

TEST(NormalizeJsonObjectTest, Depth) {
  const auto nested = [](int levels) {
    return R"({"a":)" + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
  };
  EXPECT_THAT(Normalize(nested(kMaxJsonDepth)), HasSubstr("{\"a\": [[["));
  EXPECT_THAT(Normalize(nested(kMaxJsonDepth + 1)), HasSubstr("nests deeper than 128 levels"));
  EXPECT_THAT(Normalize(R"({"a":)" + std::string(1000000, '[')), HasSubstr("nests deeper"));
}

}  // namespace
}  // namespace orcd
