#include "runtime/constraint/structural_tag.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StructuralTagTest, ReadsStructures) {
  const auto rule = ParseStructuralTag(
      R"({"type":"structural_tag","structures":[
            {"begin":"<f=a>","schema":{"type":"object","z":1,"a":2},"end":"</f>"},
            {"begin":"<f=b>","schema":"{\"type\": \"null\"}","end":""}],
          "triggers":["<f="]})",
      "f");
  ASSERT_TRUE(rule.ok()) << rule.status();
  ASSERT_EQ(rule->tags.size(), 2u);
  EXPECT_EQ(rule->tags[0].begin, "<f=a>");
  EXPECT_EQ(rule->tags[0].schema, R"({"type":"object","z":1,"a":2})");
  EXPECT_EQ(rule->tags[0].end, "</f>");
  EXPECT_EQ(rule->tags[1].schema, R"({"type": "null"})");
  EXPECT_THAT(rule->triggers, ElementsAre("<f="));
  EXPECT_FALSE(rule->at_least_one);
  EXPECT_FALSE(rule->stop_after_first);
}

TEST(StructuralTagTest, ReadsTriggeredTags) {
  const auto rule = ParseStructuralTag(
      R"({"format":{"type":"triggered_tags","triggers":["<t>"],"tags":[
            {"type":"tag","begin":"<t>a","content":{"type":"json_schema","json_schema":true},
             "end":["</t>"]}],
          "at_least_one":true,"stop_after_first":true}})",
      "f");
  ASSERT_TRUE(rule.ok()) << rule.status();
  ASSERT_EQ(rule->tags.size(), 1u);
  EXPECT_EQ(rule->tags[0].schema, "true");
  EXPECT_EQ(rule->tags[0].end, "</t>");
  EXPECT_TRUE(rule->at_least_one);
  EXPECT_TRUE(rule->stop_after_first);
}

TEST(StructuralTagTest, RefusesTheRestByPointer) {
  struct Case {
    const char* json;
    const char* reason;
    const char* message;
  };
  const Case cases[] = {
      {"", "CONSTRAINT_INVALID", "f: is not JSON, or has a number that is too large for a double"},
      {"[]", "CONSTRAINT_INVALID", "structures"},
      {R"({"format":1})", "CONSTRAINT_INVALID", "structures"},
      {R"({"structures":{}})", "CONSTRAINT_INVALID", "/structures: "},
      {R"({"structures":[1],"triggers":[]})", "CONSTRAINT_INVALID", "/structures/0/begin: "},
      {R"({"structures":[{"begin":"a","end":"b"}],"triggers":[]})", "CONSTRAINT_INVALID",
       "/structures/0/schema: "},
      {R"({"structures":[]})", "CONSTRAINT_INVALID", "/triggers: "},
      {R"({"structures":[],"triggers":[1]})", "CONSTRAINT_INVALID", "/triggers/0: "},
      {R"({"format":{"type":"sequence"}})", "CONSTRAINT_UNSUPPORTED", "/format/type: "},
      {R"({"format":{"type":"triggered_tags","tags":[
            {"begin":"a","content":{"type":"any_text"},"end":"b"}],"triggers":["a"]}})",
       "CONSTRAINT_UNSUPPORTED", "/format/tags/0/content/type: "},
      {R"({"format":{"type":"triggered_tags","tags":[
            {"begin":"a","content":{"type":"json_schema","json_schema":{}},"end":["b","c"]}],
            "triggers":["a"]}})",
       "CONSTRAINT_UNSUPPORTED", "/format/tags/0/end: "},
      {R"({"format":{"type":"triggered_tags","tags":[],"triggers":["a"],"excludes":["b"]}})",
       "CONSTRAINT_UNSUPPORTED", "/format/excludes: "},
      {R"({"format":{"type":"triggered_tags","tags":[],"triggers":["a"],"at_least_one":1}})",
       "CONSTRAINT_INVALID", "/format/at_least_one: "},
  };
  for (const Case& c : cases) {
    const auto rule = ParseStructuralTag(c.json, "f");
    ASSERT_FALSE(rule.ok()) << c.json;
    EXPECT_EQ(GetErrorDetails(rule.status()).reason, c.reason) << c.json;
    EXPECT_THAT(std::string(rule.status().message()), HasSubstr(c.message)) << c.json;
    EXPECT_EQ(GetErrorDetails(rule.status()).field, "f");
  }
  const std::string deep(1 << 20, '[');
  EXPECT_EQ(GetErrorDetails(ParseStructuralTag(deep, "f").status()).reason, "CONSTRAINT_TOO_LARGE");
}

}  // namespace
}  // namespace orcd
