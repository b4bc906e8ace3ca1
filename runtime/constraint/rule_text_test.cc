#include "runtime/constraint/rule_text.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/constraint/free_text.h"
#include "runtime/text/small_vocabulary_for_test.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

// The 256 bytes, control tokens from 256 on with the end among them, a token that is spelled in
// texts, and one that is unused.
class RuleTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* text : {"<|a|>", "<|b|>", "<|im_end|>", "<|c|>"}) {
      vocabulary_.Add(text, TokenType::kControl);
    }
    vocabulary_.Add("<call>", TokenType::kUserDefined);
    vocabulary_.Add("<|unused|>", TokenType::kUnused);
    Vocabulary view = vocabulary_.View();
    view.eos_id = 258;
    auto tokenizer = Tokenizer::Create(view);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::string Text(ConstraintSpec spec, const std::string& type = "lark") {
    spec.field = "f";
    const absl::Status status = CheckRule(spec, {});
    EXPECT_TRUE(status.ok()) << status;
    const auto text = ToRuleText(spec, *tokenizer_);
    EXPECT_TRUE(text.ok()) << text.status();
    if (!text.ok()) return "";
    EXPECT_EQ(text->type, type);
    return text->text;
  }

  SmallVocabulary vocabulary_;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

// The reason and the message.
std::pair<std::string, std::string> Refusal(ConstraintSpec spec, const ConstraintLimits& limits) {
  spec.field = "f";
  const absl::Status status = CheckRule(spec, limits);
  EXPECT_EQ(GetErrorDetails(status).reason.empty(), status.ok());
  return {GetErrorDetails(status).reason, std::string(status.message())};
}
std::string ReasonFor(ConstraintSpec spec) { return Refusal(std::move(spec), {}).first; }

TEST_F(RuleTextTest, WritesEachRule) {
  EXPECT_THAT(Text({.rule = JsonSchemaRule{R"({"type":"null"})"}, .start = {}}, "json_schema"),
              HasSubstr(R"({"type":"null",)"));
  EXPECT_EQ(Text({.rule = JsonObjectRule{}, .start = {}}, "json_schema"), R"({"type":"object"})");
  EXPECT_EQ(Text({.rule = RegexRule{"a/b+"}, .start = {}}), "start: REGEX\nREGEX: /a\\/b+/\n");
  EXPECT_EQ(Text({.rule = GrammarRule{GrammarDialect::kLark, "start: \"a\""}, .start = {}}),
            "start: \"a\"");
  EXPECT_EQ(Text({.rule = GrammarRule{GrammarDialect::kEbnf, "root ::= \"a\""}, .start = {}}),
            "start: G0\nG0: \"a\"\n");
  EXPECT_EQ(Text({.rule = ChoiceRule{{"yes", "n\"o\n"}}, .start = {}}),
            "start: CHOICE\nCHOICE: \"yes\" | \"n\\\"o\\u000a\"\n");
}

TEST_F(RuleTextTest, LeavesTheStartAfterATokenToTheCaller) {
  EXPECT_EQ(Text({.rule = RegexRule{"a"}, .start = StartAfterToken{7}}),
            Text({.rule = RegexRule{"a"}, .start = {}}));
}

TEST_F(RuleTextTest, BeginsAfterAString) {
  EXPECT_EQ(Text({.rule = RegexRule{"a"}, .start = StartAfterString{"</think>"}}),
            "start: begin REGEX\n"
            "mark[lazy]: TEXT \"</think>\"\n"
            "begin: (TEXT <[256-257,259]>)* mark\n"
            "TEXT: /(?s:.*)/\n"
            "REGEX: /a/\n");
  EXPECT_EQ(Text({.rule = JsonObjectRule{}, .start = StartAfterString{"<|b|>"}}),
            "start: begin %json {\"type\":\"object\"}\n"
            "mark: TEXT <[257]>\n"
            "begin: (TEXT <[256,259]>)* mark\n"
            "TEXT: /(?s:.*)/\n");
  EXPECT_THAT(Text({.rule = GrammarRule{GrammarDialect::kLark, "start: \"a\" // b"},
                    .start = StartAfterString{"x"}}),
              HasSubstr("start: begin %lark {\nstart: \"a\" // b\n}\n"));
  const ConstraintSpec mixed = {
      .rule = JsonObjectRule{}, .start = StartAfterString{"<|b|>x"}, .field = "f"};
  EXPECT_EQ(GetErrorDetails(ToRuleText(mixed, *tokenizer_).status()).reason,
            "CONSTRAINT_UNSUPPORTED");
}

TEST_F(RuleTextTest, WritesStructuralTags) {
  const StructuralTagRule rule = {
      .tags = {{"<f=a>", "true", "</f>"}, {"<call>", "false", ""}, {"<f=b>", "", "</f>"}},
      .triggers = {"<f=", "<call>", "<call"}};
  EXPECT_THAT(Text({.rule = rule, .start = {}}), HasSubstr("<[256-257,259]>"));
  EXPECT_EQ(Text({.rule = rule, .start = {}}),
            "start: tags\n"
            "TEXT: /(?s:.*)/\n"
            "body0: \"a>\" %json true \"</f>\" | \"b>\" %json "
            "{\"x-guidance\":{\"json_allowed_escapes\":\"nrbtf\\\\\\\"\"}} \"</f>\"\n"
            "until0[lazy]: TEXT \"<f=\"\n"
            "body1: \">\" %json false \"\"\n"
            "until1[lazy]: TEXT \"<call\"\n"
            "other: TEXT <[256-257,259]>\n"
            "tag: until0 body0 | until1 body1\n"
            "text: until0 body0 | until1 body1 | other\n"
            "tags: text* TEXT\n");
}

TEST_F(RuleTextTest, WritesStructuralTagsOfControlTokens) {
  const StructuralTagRule rule = {
      .tags = {{"<|a|>x<|b|>y", "true", "z<|c|>"}}, .triggers = {"<|a|>x"}, .at_least_one = true};
  EXPECT_EQ(Text({.rule = rule, .start = {}}),
            "start: tags\n"
            "TEXT: /(?s:.*)/\n"
            "body0: <[257]> \"y\" %json true \"z\" <[259]>\n"
            "other: TEXT <[257,259]>\n"
            "tag: <[256]> \"x\" body0\n"
            "text: TEXT <[256]> \"x\" body0 | other\n"
            "tags: tag text* TEXT\n");
  StructuralTagRule once = rule;
  once.stop_after_first = true;
  EXPECT_THAT(Text({.rule = once, .start = {}}), HasSubstr("tags: tag\n"));
  once.at_least_one = false;
  EXPECT_THAT(Text({.rule = once, .start = {}}), HasSubstr("tags: other* (tag | TEXT)\n"));
  for (const char* trigger : {"<|a", "x<|a|>"}) {
    const StructuralTagRule cut = {.tags = {{trigger + std::string("|>y"), "", "z"}},
                                   .triggers = {trigger}};
    EXPECT_EQ(
        GetErrorDetails(ToRuleText({.rule = cut, .start = {}, .field = "f"}, *tokenizer_).status())
            .reason,
        "CONSTRAINT_UNSUPPORTED")
        << trigger;
  }
}

TEST_F(RuleTextTest, RefusesTokensThatEndTheGenerationWithinARule) {
  const auto reason = [&](const ConstraintSpec& spec) {
    return GetErrorDetails(ToRuleText(spec, *tokenizer_).status()).reason;
  };
  EXPECT_EQ(reason({.rule = JsonObjectRule{}, .start = StartAfterString{"<|im_end|>"}}),
            "CONSTRAINT_INVALID");
  for (const StructuralTagRule::Tag& tag : {StructuralTagRule::Tag{"<|im_end|>x", "", "z"},
                                            StructuralTagRule::Tag{"<f><|im_end|>", "", "z"},
                                            StructuralTagRule::Tag{"<f>", "", "z<|im_end|>"}}) {
    const StructuralTagRule rule = {.tags = {tag}, .triggers = {tag.begin}};
    EXPECT_EQ(reason({.rule = rule, .start = {}}), "CONSTRAINT_UNSUPPORTED") << tag.begin;
  }
}

TEST_F(RuleTextTest, SplitsControlTokens) {
  const auto pieces = SplitControlTokens("é<|a|><|b|>x <call><|unused|>", *tokenizer_);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[0].text, "é");
  EXPECT_EQ(pieces[1].token, 256);
  EXPECT_EQ(pieces[2].token, 257);
  EXPECT_EQ(pieces[3].text, "x <call><|unused|>");
  EXPECT_EQ(LarkPieces(pieces), "\"é\" <[256]> <[257]> \"x <call><|unused|>\"");
  EXPECT_EQ(LarkPieces({}), "\"\"");
}

TEST(CheckRuleTest, RefusesWhatCannotBeRead) {
  EXPECT_EQ(ReasonFor({.rule = RegexRule{""}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = RegexRule{"a\xff"}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = RegexRule{std::string("a\0b", 3)}, .start = {}}),
            "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = RegexRule{"a\\"}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = RegexRule{"\\\\\\"}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = RegexRule{"\\\\"}, .start = {}}), "");
  EXPECT_EQ(ReasonFor({.rule = RegexRule{"a(?P<stop>b)"}, .start = {}}), "CONSTRAINT_UNSUPPORTED");
  EXPECT_EQ(ReasonFor({.rule = RegexRule{"a(?P<end>b)"}, .start = {}}), "");
  EXPECT_EQ(ReasonFor({.rule = GrammarRule{GrammarDialect::kLark, ""}, .start = {}}),
            "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = GrammarRule{GrammarDialect::kEbnf, "root ::="}, .start = {}}), "");
  EXPECT_EQ(ReasonFor({.rule = GrammarRule{GrammarDialect::kEbnf, "start: a"}, .start = {}}),
            "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = ChoiceRule{}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = ChoiceRule{{"a", ""}}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = ChoiceRule{{"\xff"}}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = JsonSchemaRule{""}, .start = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = JsonObjectRule{}, .start = StartAfterString{""}}),
            "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = JsonObjectRule{}, .start = StartAfterString{"\xff"}}),
            "CONSTRAINT_INVALID");
  EXPECT_EQ(ReasonFor({.rule = JsonObjectRule{}, .start = StartAfterString{std::string(257, 'a')}}),
            "CONSTRAINT_INVALID");
}

// The library would read such a schema with options of its own, and misread it.
TEST(CheckRuleTest, RefusesSchemasInLark) {
  for (const char* grammar :
       {R"(start: %json {"type":"array","uniqueItems":true,"x-guidance":{"lenient":true}})",
        "start: \"a\" %lark {\nstart: %json{\"format\":\"date\"}\n}"}) {
    const auto [why, message] =
        Refusal({.rule = GrammarRule{GrammarDialect::kLark, grammar}, .start = {}}, {});
    EXPECT_EQ(why, "CONSTRAINT_UNSUPPORTED") << grammar;
    EXPECT_THAT(message, HasSubstr("`%json` is not supported"));
  }
}

TEST(CheckRuleTest, RefusesTagsThatCannotBegin) {
  const auto reason = [](StructuralTagRule rule) {
    return ReasonFor({.rule = std::move(rule), .start = {}});
  };
  EXPECT_EQ(reason({}), "CONSTRAINT_INVALID");
  EXPECT_EQ(reason({.tags = {{"a", "", ""}}, .triggers = {}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(reason({.tags = {{"a", "", ""}}, .triggers = {""}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(reason({.tags = {{"a", "", ""}}, .triggers = {"b"}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(reason({.tags = {{"a", "", ""}, {"b", "", ""}}, .triggers = {"b"}}),
            "CONSTRAINT_INVALID");
  EXPECT_EQ(reason({.tags = {{"xay", "", ""}, {"a", "", ""}}, .triggers = {"xa", "a"}}),
            "CONSTRAINT_INVALID");
  EXPECT_EQ(reason({.tags = {{"a\xff", "", ""}}, .triggers = {"a"}}), "CONSTRAINT_INVALID");
  EXPECT_EQ(reason({.tags = {{"ab", "", ""}}, .triggers = {"a", "ab", "a"}}), "");
  EXPECT_EQ(
      reason({.tags = std::vector<StructuralTagRule::Tag>(1025, {"a", "", ""}), .triggers = {"a"}}),
      "CONSTRAINT_TOO_LARGE");
  const auto [why, message] =
      Refusal({.rule = StructuralTagRule{.tags = {{"a", "", ""}, {"a", R"({"not":1})", ""}},
                                         .triggers = {"a"}},
               .start = {}},
              {});
  EXPECT_EQ(why, "CONSTRAINT_UNSUPPORTED");
  EXPECT_THAT(message, HasSubstr("f.tags[1].json_schema: /not: "));
}

TEST(CheckRuleTest, KeepsTheLimits) {
  ConstraintLimits limits;
  limits.max_bytes = 10;
  limits.max_depth = 2;
  const auto reason = [&](ConstraintSpec spec) { return Refusal(std::move(spec), limits).first; };
  EXPECT_EQ(reason({.rule = RegexRule{std::string(10, 'a')}, .start = {}}), "");
  EXPECT_EQ(reason({.rule = RegexRule{std::string(11, 'a')}, .start = {}}), "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(reason({.rule = RegexRule{"aaaaaaaaaa"}, .start = StartAfterString{"a"}}),
            "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(reason({.rule = ChoiceRule{{"aaaaaa", "bbbbb"}}, .start = {}}), "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(reason({.rule = JsonSchemaRule{"{\"a\":{}}"}, .start = {}}), "");
  EXPECT_EQ(reason({.rule = JsonSchemaRule{"{\"a\":[[]]}"}, .start = {}}), "CONSTRAINT_TOO_LARGE");
  std::string rules;
  for (int i = 0; i < 2001; ++i) rules += " a" + std::to_string(i) + ": \"b\"\n";
  EXPECT_EQ(ReasonFor({.rule = GrammarRule{GrammarDialect::kLark, rules}, .start = {}}),
            "CONSTRAINT_TOO_LARGE");
  rules.resize(rules.find("a2000"));
  EXPECT_EQ(ReasonFor({.rule = GrammarRule{GrammarDialect::kLark, rules}, .start = {}}), "");
}

}  // namespace
}  // namespace orcd
