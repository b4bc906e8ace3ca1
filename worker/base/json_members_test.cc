#include "worker/base/json_members.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(JsonMembersTest, ValuesKeepTheirText) {
  const JsonMembers members(R"( { "b" : {"z": 1, "a": [2, {}]} , "a":[ ],"n":-1.5e3,
                                  "t": true,"s":"x" } )");
  EXPECT_EQ(members.size(), 5u);
  EXPECT_EQ(members.TextOf("b"), R"({"z": 1, "a": [2, {}]})");
  EXPECT_EQ(members.TextOf("a"), "[ ]");
  EXPECT_EQ(members.TextOf("n"), "-1.5e3");
  EXPECT_EQ(members.TextOf("t"), "true");
  EXPECT_EQ(members.TextOf("s"), R"("x")");
  EXPECT_EQ(members.TextOf("z"), "");
}

TEST(JsonMembersTest, StringsMayHoldWhatDividesMembers) {
  const JsonMembers members(R"({"a\"}": "},\"{[\\", "\u0062": {"]": "\\\\"}})");
  EXPECT_EQ(members.size(), 2u);
  EXPECT_EQ(members.TextOf("a\"}"), R"("},\"{[\\")");
  EXPECT_EQ(members.TextOf("b"), R"({"]": "\\\\"})");
}

TEST(JsonMembersTest, WhatIsNoObjectHasNone) {
  for (const char* text : {"", " ", "{}", " { } ", "[1]", "\"a\"", "5", "null"}) {
    EXPECT_EQ(JsonMembers(text).size(), 0u) << text;
  }
}

}  // namespace
}  // namespace orcd
