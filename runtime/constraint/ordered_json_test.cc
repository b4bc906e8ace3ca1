#include "runtime/constraint/ordered_json.h"

#include <string>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

std::string ReasonFor(const std::string& text, int max_depth = 8) {
  const auto json = ReadJson(text, "f", max_depth);
  return json.ok() ? "" : GetErrorDetails(json.status()).reason;
}

TEST(OrderedJsonTest, KeepsTheOrderOfMembers) {
  const auto json = ReadJson(R"({"z":1,"a":{"y":2.50,"b":[3,-4,"é"]},"m":null})", "f", 8);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), R"({"z":1,"a":{"y":2.5,"b":[3,-4,"é"]},"m":null})");
  ASSERT_NE(FindMember(*json, "m"), nullptr);
  EXPECT_TRUE(FindMember(*json, "m")->is_null());
  EXPECT_EQ(FindMember(*json, "y"), nullptr);
  EXPECT_EQ(FindMember(OrderedJson(3), "y"), nullptr);
}

TEST(OrderedJsonTest, RefusesHostileTexts) {
  EXPECT_EQ(ReasonFor(""), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor("{} x"), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor("{\"a\":\"\xff\"}"), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor("1e999"), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor(R"({"a":1,"a":2})"), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor("[[[]]]", 3), "");
  EXPECT_EQ(ReasonFor("[[[[]]]]", 3), "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(ReasonFor(std::string(5 << 20, '[')), "CONSTRAINT_TOO_LARGE");
}

TEST(OrderedJsonTest, ReadsManyMembersInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"name" + std::to_string(i) + "\":1,";
  text += "\"last\":2}";
  const auto json = ReadJson(text, "f", 8);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->size(), 200'001u);
}

}  // namespace
}  // namespace orcd
