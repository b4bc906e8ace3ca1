#include "worker/api/orcd/constraint_translation.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "worker/api/orcd/build_for_test.h"
#include "worker/api/orcd/recording_compiler_for_test.h"
#include "worker/api/orcd/request_translation.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

ConstraintSpec Translate(v1::Constraint constraint) {
  const absl::StatusOr<ConstraintSpec> spec = TranslateConstraint(constraint);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(ConstraintSpec());
}

TEST(ConstraintTranslationTest, EachRuleArrivesWithItsField) {
  v1::Constraint constraint;
  constraint.set_json_schema(R"({"b": 1, "a": 2})");
  EXPECT_EQ(std::get<JsonSchemaRule>(Translate(constraint).rule).schema, R"({"b": 1, "a": 2})");
  EXPECT_EQ(Translate(constraint).field, "constraint.json_schema");
  constraint.set_json_object(true);
  EXPECT_TRUE(std::holds_alternative<JsonObjectRule>(Translate(constraint).rule));
  EXPECT_EQ(Translate(constraint).field, "constraint.json_object");
  constraint.set_regex("a+");
  EXPECT_EQ(std::get<RegexRule>(Translate(constraint).rule).expression, "a+");
  EXPECT_EQ(Translate(constraint).field, "constraint.regex");
  constraint.mutable_choice()->add_choices("yes");
  constraint.mutable_choice()->add_choices("no");
  EXPECT_THAT(std::get<ChoiceRule>(Translate(constraint).rule).choices, ElementsAre("yes", "no"));
  EXPECT_EQ(Translate(constraint).field, "constraint.choice");
  constraint.mutable_grammar()->set_text("start: \"a\"");
  for (const auto& [sent, read] : {std::pair(v1::GRAMMAR_DIALECT_LARK, GrammarDialect::kLark),
                                   std::pair(v1::GRAMMAR_DIALECT_EBNF, GrammarDialect::kEbnf)}) {
    constraint.mutable_grammar()->set_dialect(sent);
    const auto rule = std::get<GrammarRule>(Translate(constraint).rule);
    EXPECT_EQ(rule.dialect, read);
    EXPECT_EQ(rule.grammar, "start: \"a\"");
  }
  EXPECT_EQ(Translate(constraint).field, "constraint.grammar");
}

TEST(ConstraintTranslationTest, TagsArrive) {
  v1::Constraint constraint;
  v1::StructuralTags& tags = *constraint.mutable_structural_tags();
  tags.add_triggers("<f");
  v1::StructuralTag& first = *tags.add_tags();
  first.set_begin("<f=a>");
  first.set_json_schema(R"({"type": "object"})");
  first.set_end("</f>");
  tags.add_tags()->set_begin("<f=b>");
  const ConstraintSpec spec = Translate(constraint);
  EXPECT_EQ(spec.field, "constraint.structural_tags");
  const auto rule = std::get<StructuralTagRule>(spec.rule);
  EXPECT_THAT(rule.triggers, ElementsAre("<f"));
  ASSERT_EQ(rule.tags.size(), 2u);
  EXPECT_EQ(rule.tags[0].begin, "<f=a>");
  EXPECT_EQ(rule.tags[0].schema, R"({"type": "object"})");
  EXPECT_EQ(rule.tags[0].end, "</f>");
  EXPECT_EQ(rule.tags[1].begin, "<f=b>");
  EXPECT_EQ(rule.tags[1].schema, "");
}

TEST(ConstraintTranslationTest, TheStartIsTheFirstTokenUnlessItIsNamed) {
  v1::Constraint constraint;
  constraint.set_regex("a");
  EXPECT_TRUE(std::holds_alternative<StartAtFirstToken>(Translate(constraint).start));
  constraint.set_after_token(7);
  EXPECT_EQ(std::get<StartAfterToken>(Translate(constraint).start).token, 7);
  constraint.set_after_string(std::string(256, 'x'));
  EXPECT_EQ(std::get<StartAfterString>(Translate(constraint).start).text, std::string(256, 'x'));
}

TEST(ConstraintTranslationTest, WhatNamesNoRuleIsRefused) {
  using Spoil = std::function<void(v1::Constraint&)>;
  const std::vector<std::pair<const char*, Spoil>> cases = {
      {"constraint", [](v1::Constraint&) {}},
      {"constraint", [](v1::Constraint& c) { c.set_after_token(1); }},
      {"constraint.json_object", [](v1::Constraint& c) { c.set_json_object(false); }},
      {"constraint.grammar.dialect", [](v1::Constraint& c) { c.mutable_grammar()->set_text("a"); }},
      {"constraint.grammar.dialect",
       [](v1::Constraint& c) {
         c.mutable_grammar()->set_dialect(static_cast<v1::GrammarDialect>(9));
       }},
      {"constraint.after_string",
       [](v1::Constraint& c) {
         c.set_regex("a");
         c.set_after_string("");
       }},
      {"constraint.after_string",
       [](v1::Constraint& c) {
         c.set_regex("a");
         c.set_after_string(std::string(257, 'x'));
       }},
  };
  for (const auto& [field, spoil] : cases) {
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    spoil(*request.mutable_constraint());
    const absl::Status status = Build(TranslateRequest(request)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(GetErrorDetails(status).field, field);
  }
}

TEST(ConstraintTranslationTest, TheCompilersAnswerIsTheRequests) {
  v1::GenerateRequest proto;
  proto.mutable_tokens()->add_ids(1);
  proto.set_samples(3);
  RequestBuilder free = TranslateRequest(proto);
  RecordingCompiler compiler;
  ASSERT_TRUE(free.CompileConstraint(NanoModel(), compiler).ok());
  EXPECT_TRUE(compiler.asked().empty());
  EXPECT_EQ(free.request().constraint, nullptr);
  EXPECT_FALSE(free.sampling().masked_logprobs);

  proto.mutable_constraint()->set_regex("a+");
  RequestBuilder bound = TranslateRequest(proto);
  ASSERT_TRUE(bound.CompileConstraint(NanoModel(), compiler).ok());
  ASSERT_EQ(compiler.asked().size(), 1u);
  EXPECT_EQ(compiler.asked()[0].samples, 3);
  EXPECT_NE(bound.request().constraint, nullptr);
  EXPECT_TRUE(bound.sampling().masked_logprobs);

  RecordingCompiler refusing(MakeError(absl::StatusCode::kInvalidArgument, "no",
                                       {.reason = "CONSTRAINT_INVALID", .field = "f"}));
  RequestBuilder refused = TranslateRequest(proto);
  EXPECT_EQ(GetErrorDetails(refused.CompileConstraint(NanoModel(), refusing)).reason,
            "CONSTRAINT_INVALID");
}

TEST(ConstraintTranslationTest, ATokenOutsideTheVocabularyIsRefused) {
  const auto vocab = static_cast<uint32_t>(NanoModel().spec().vocab);
  for (const uint32_t id : {vocab, 0x80000000U, 0xFFFFFFFFU}) {
    v1::GenerateRequest proto;
    proto.mutable_tokens()->add_ids(1);
    proto.mutable_constraint()->set_regex("a");
    proto.mutable_constraint()->set_after_token(id);
    RequestBuilder request = TranslateRequest(proto);
    RecordingCompiler compiler;
    const absl::Status status = request.CompileConstraint(NanoModel(), compiler);
    EXPECT_EQ(GetErrorDetails(status).field, "constraint.after_token") << id;
    EXPECT_TRUE(compiler.asked().empty());
  }
}

}  // namespace
}  // namespace orcd
