#include "tools/orcdctl/constraint_options.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Constraint Made(const ConstraintOptions& options) {
  const auto constraint = NewConstraint(options);
  EXPECT_TRUE(constraint.ok()) << constraint.status();
  return constraint.ok() && *constraint ? **constraint : v1::Constraint();
}

std::string WriteFile(const std::string& content) {
  std::string path = absl::StrCat(::testing::TempDir(), "/rule-", getpid());
  std::ofstream(path) << content;
  return path;
}

TEST(ConstraintOptionsTest, NoRuleIsNoConstraint) {
  const auto constraint = NewConstraint({});
  ASSERT_TRUE(constraint.ok());
  EXPECT_FALSE(constraint->has_value());
}

TEST(ConstraintOptionsTest, EachRule) {
  EXPECT_EQ(Made({.json_schema = " {\"a\": 1}"}).json_schema(), " {\"a\": 1}");
  EXPECT_EQ(Made({.json_schema = "false"}).json_schema(), "false");
  EXPECT_EQ(Made({.json_schema = " true\n"}).json_schema(), " true\n");
  EXPECT_TRUE(Made({.json_object = true}).json_object());
  EXPECT_EQ(Made({.regex = "a+"}).regex(), "a+");
  EXPECT_THAT(Made({.choices = {"yes", "no"}}).choice().choices(), ElementsAre("yes", "no"));
}

TEST(ConstraintOptionsTest, FilesAreRead) {
  EXPECT_EQ(Made({.json_schema = WriteFile("{\"a\": 2}")}).json_schema(), "{\"a\": 2}");
  const v1::Grammar lark = Made({.lark_file = WriteFile("start: \"a\"")}).grammar();
  EXPECT_EQ(lark.dialect(), v1::GRAMMAR_DIALECT_LARK);
  EXPECT_EQ(lark.text(), "start: \"a\"");
  const v1::Grammar ebnf = Made({.ebnf_file = WriteFile("root ::= \"a\"")}).grammar();
  EXPECT_EQ(ebnf.dialect(), v1::GRAMMAR_DIALECT_EBNF);
  EXPECT_EQ(ebnf.text(), "root ::= \"a\"");
  EXPECT_FALSE(NewConstraint({.json_schema = "/not/there"}).ok());
  EXPECT_THAT(
      std::string(NewConstraint({.ebnf_file = WriteFile("root ::= \"\xff\"")}).status().message()),
      HasSubstr("--ebnf"));
}

TEST(ConstraintOptionsTest, StructuralTagsAreTheirMessageInJson) {
  const v1::StructuralTags tags =
      Made({.structural_tags_file =
                WriteFile(R"({"tags": [{"begin": "<f>", "json_schema": "{}", "end": "</f>"}],)"
                          R"( "triggers": ["<f"]})")})
          .structural_tags();
  EXPECT_THAT(tags.triggers(), ElementsAre("<f"));
  ASSERT_EQ(tags.tags_size(), 1);
  EXPECT_EQ(tags.tags(0).begin(), "<f>");
  EXPECT_EQ(tags.tags(0).json_schema(), "{}");
  EXPECT_EQ(tags.tags(0).end(), "</f>");
  for (const char* wrong : {"{", R"({"tag": []})"}) {
    EXPECT_THAT(
        std::string(NewConstraint({.structural_tags_file = WriteFile(wrong)}).status().message()),
        HasSubstr("--structural-tags"));
  }
}

TEST(ConstraintOptionsTest, WhereItBegins) {
  EXPECT_EQ(Made({.regex = "a", .after = "Answer:"}).after_string(), "Answer:");
  EXPECT_EQ(Made({.regex = "a", .after_token = 7}).after_token(), 7u);
  EXPECT_EQ(Made({.regex = "a"}).start_case(), v1::Constraint::START_NOT_SET);
}

TEST(ConstraintOptionsTest, ContradictionsAreNamed) {
  EXPECT_THAT(std::string(NewConstraint({.json_object = true, .regex = "a"}).status().message()),
              HasSubstr("--json-object and --regex"));
  EXPECT_THAT(std::string(NewConstraint({.after = "x"}).status().message()), HasSubstr("--after"));
}

}  // namespace
}  // namespace orcd::ctl
