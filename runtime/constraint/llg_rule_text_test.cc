// Rules as the constraint library understands them: which outputs they accept.
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/constraint/llg_rule.h"
#include "runtime/constraint/llg_rules_for_test.h"
#include "runtime/constraint/rule_text.h"

namespace orcd {
namespace {

const JsonVocabulary& Vocab() { return JsonVocabulary::Get(); }

absl::StatusOr<std::shared_ptr<const LlgRule>> Compile(ConstraintSpec spec,
                                                       const ConstraintLimits& limits = {}) {
  spec.field = "f";
  ORCD_RETURN_IF_ERROR(CheckRule(spec, limits));
  ORCD_ASSIGN_OR_RETURN(const RuleText text, ToRuleText(spec, *Vocab().tokenizer));
  return LlgRule::Compile(Vocab().llg, spec, text, limits, nullptr);
}

enum class Verdict { kComplete, kIncomplete, kForbidden };

// A mask has one tokenization of text that must come; others are accepted all the same.
Verdict Judge(const LlgRule& rule, const std::vector<int32_t>& tokens, bool by_masks) {
  const auto constraint = rule.Make(nullptr);
  for (const int32_t token : tokens) {
    if (by_masks && !constraint->Mask(0).Allows(token)) return Verdict::kForbidden;
    constraint->Accept(token);
    if (!constraint->status().ok()) return Verdict::kForbidden;
  }
  return constraint->Mask(0).Allows(Vocab().end) ? Verdict::kComplete : Verdict::kIncomplete;
}

class Rule {
 public:
  explicit Rule(ConstraintSpec spec, const ConstraintLimits& limits = {}) {
    auto rule = Compile(std::move(spec), limits);
    EXPECT_TRUE(rule.ok()) << rule.status();
    if (rule.ok()) rule_ = *std::move(rule);
  }

  // Expects the same of a text's tokens and, where it has no special tokens, of its bytes.
  void Expect(Verdict expected, const std::string& text) const {
    ASSERT_NE(rule_, nullptr);
    EXPECT_EQ(Judge(*rule_, Vocab().tokenizer->Encode(text, true), true), expected) << text;
    if (text.find("<|") != std::string::npos) return;
    const std::vector<int32_t> bytes = [&] {
      std::vector<int32_t> ids;
      for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
      return ids;
    }();
    EXPECT_EQ(Judge(*rule_, bytes, false), expected) << "bytes of " << text;
  }
  void Complete(std::initializer_list<const char*> texts) const {
    for (const char* text : texts) Expect(Verdict::kComplete, text);
  }
  void Incomplete(std::initializer_list<const char*> texts) const {
    for (const char* text : texts) Expect(Verdict::kIncomplete, text);
  }
  void Forbidden(std::initializer_list<const char*> texts) const {
    for (const char* text : texts) Expect(Verdict::kForbidden, text);
  }

 private:
  std::shared_ptr<const LlgRule> rule_;
};

Rule Ebnf(std::string grammar) {
  return Rule({.rule = GrammarRule{GrammarDialect::kEbnf, std::move(grammar)}, .start = {}});
}
Rule Schema(std::string schema) {
  return Rule({.rule = JsonSchemaRule{std::move(schema)}, .start = {}});
}

TEST(LlgRuleTextTest, Regexes) {
  const Rule rule({.rule = RegexRule{"^(a/b|[é日]\\/){1,2}$"}, .start = {}});
  rule.Complete({"a/b", "é/日/", "a/ba/b"});
  rule.Incomplete({"", "a", "é"});
  rule.Forbidden({"b", "a/ba/ba", "a/bx"});
}

TEST(LlgRuleTextTest, Choices) {
  const Rule rule(
      {.rule = ChoiceRule{{"red", "reddish", "a\"b\\c\n/", "日本é", "a b"}}, .start = {}});
  rule.Complete({"red", "reddish", "a\"b\\c\n/", "日本é", "a b"});
  rule.Incomplete({"", "r", "reddis", "日"});
  rule.Forbidden({"redd ", "redreddish", " red", "a c"});
}

TEST(LlgRuleTextTest, ChoicesOfMany) {
  ChoiceRule many;
  for (int i = 0; i < 5'000; ++i) many.choices.push_back(std::to_string(i * 7));
  ConstraintSpec spec = {.rule = many, .start = {}};
  const Rule rule(spec);
  rule.Complete({"0", "7", "34993"});
  rule.Forbidden({"34994", "8x"});
}

TEST(LlgRuleTextTest, EbnfWithoutRecursion) {
  const Rule rule = Ebnf(R"(root ::= [a-z]+ "abc" digits? tail{1,2}
                            digits ::= [0-9]{2}
                            tail ::= "\n" | "é" | [^a-z0-9\n])");
  rule.Complete({"abcabc\n", "zabc12é日", "abcabcabc  "});
  rule.Incomplete({"", "abc", "abcabc1", "abcabd"});
  rule.Forbidden({"\n", "zabc123", "zabc\n\n\n"});
}

TEST(LlgRuleTextTest, EbnfOfJson) {
  // llama.cpp's example, in its layout.
  const Rule rule = Ebnf(R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20})");
  rule.Complete({"{}", "{ }", R"({"a":1,"b": [true, false,{"é\u00e9":-1.5e+3}, []]} )",
                 "{\n  \"name\": \"value\",\n  \"x\": null\n}"});
  rule.Incomplete({"{", R"({"a":1)", R"({"a":"x\")"});
  rule.Forbidden({"[]", "{\"a\":01", "{\"a\"1", "{\"a\":tru}", "{}}"});
}

TEST(LlgRuleTextTest, EbnfOfVllmClients) {
  const Rule sql = Ebnf(R"(
    root ::= select_statement
    select_statement ::= "SELECT " column " from " table " where " condition
    column ::= "col_1 " | "col_2 "
    table ::= "table_1 " | "table_2 "
    condition ::= column "= " number
    number ::= "1 " | "2 "
  )");
  sql.Complete({"SELECT col_1  from table_1  where col_2 = 1 "});
  sql.Forbidden({"SELECT col_3", "select"});
  const Rule sum = Ebnf(
      "root ::= expr\nexpr ::= term (\"+\" term)*\n"
      "term ::= \"(\" expr \")\" | [0-9]+ | \"-\" term");
  sum.Complete({"1", "12+(3+-4)", "((((5))))"});
  sum.Incomplete({"(1", "1+"});
  sum.Forbidden({"1++", ")", "1)"});
}

TEST(LlgRuleTextTest, EbnfThatRecursInEveryWay) {
  const Rule left = Ebnf("root ::= root \"a\" | \"b\"");
  left.Complete({"b", "baaa"});
  left.Forbidden({"ab", "bb"});
  const Rule middle = Ebnf("root ::= \"(\" root \")\" root |");
  middle.Complete({"", "()", "(())()"});
  middle.Incomplete({"(", "(()"});
  middle.Forbidden({")", "())"});
  const Rule by_character = Ebnf("root ::= [0-9] root | [0-9]");
  by_character.Complete({"1", "2024"});
  by_character.Forbidden({"a", "1a"});
  const Rule repeated = Ebnf("root ::= (\"[\" root \"]\" \"x\"?){2,3} | \"a\"");
  repeated.Complete({"a", "[a][a]x", "[a]x[[a][a]][a]x"});
  repeated.Incomplete({"[a]", "[[a]"});
  repeated.Forbidden({"[a][a][a][", "[]"});
}

TEST(LlgRuleTextTest, BeginsAfterAString) {
  const Rule rule({.rule = JsonSchemaRule{R"({"type":"object","properties":{"a":{"type":"null"}},
                                              "required":["a"],"additionalProperties":false})"},
                   .start = StartAfterString{"</think>"}});
  rule.Complete({"</think>{\"a\":null}", "the {\"b\":1}\n</thin</think>{ \"a\" : null}",
                 "<|im_start|>é<|im_start|></think>{\"a\":null}",
                 "<tool_call></think>{\"a\":null}"});
  rule.Incomplete({"", "the", "</think>", "</think>{\"a\":", "</thin{}"});
  rule.Forbidden({"</think>\n", "</think>{\"b", "a</think>b", "</think>{\"a\":null}x",
                  "</think><|im_start|>", "</think>{\"a\":null}</think>"});
}

TEST(LlgRuleTextTest, BeginsAfterAControlTokenInText) {
  const Rule rule({.rule = RegexRule{"[0-9]+"}, .start = StartAfterString{"<|im_start|>"}});
  rule.Complete({"<|im_start|>12", "the <tool_call> 7<|im_start|>100"});
  rule.Incomplete({"", "the", "<|im_start|>"});
  rule.Forbidden({"<|im_start|>a", "<|im_start|>1<|im_start|>"});
}

TEST(LlgRuleTextTest, EveryRuleMayBeginAfterAString) {
  const StartAfterString start = {"="};
  Rule({.rule = JsonObjectRule{}, .start = start}).Complete({"a={}", "={\"a\":[1]}"});
  Rule({.rule = ChoiceRule{{"yes", "no"}}, .start = start}).Complete({"=yes", "a =no"});
  Rule({.rule = GrammarRule{GrammarDialect::kEbnf, "root ::= \"a\" root | \"b\""}, .start = start})
      .Complete({"x=aab"});
  const Rule lark(
      {.rule = GrammarRule{GrammarDialect::kLark, "start: \"a\" B // end\n%ignore / /\nB: /b+/"},
       .start = start});
  lark.Complete({"x=a bb", "=ab"});
  lark.Forbidden({"x=b", "= ab"});
  Rule({.rule = StructuralTagRule{{{"<a>", "", "</a>"}}, {"<a>"}}, .start = start})
      .Complete({"x=", "<a>=<a>{}</a>="});
}

TEST(LlgRuleTextTest, StructuralTags) {
  const Rule rule(
      {.rule = StructuralTagRule{.tags = {{"<f=a>", R"({"type":"integer"})", "</f>"},
                                          {"<f=ab>\n", R"({"type":"object"})", "\n</f>"},
                                          {"[x]", "", ""}},
                                 .triggers = {"<f=", "[x]"}},
       .start = {}});
  rule.Complete({"", "the <f text", "<f=a>10</f>", "a<f=ab>\n{\"x\":1}\n</f> b <f=a>-3</f>c", "<",
                 "[x]{}", "[x]null the<f=a>1</f>", "<|im_start|>a<f=a>1</f><|im_start|>"});
  rule.Incomplete({"<f=", "a<f=a", "<f=a>10", "<f=a>10</f", "<f=ab>\n{\"x\":1}", "[x]", "[x]{"});
  rule.Forbidden(
      {"<f=b", "<f=a>x", "<f=a> 1", "<f=a>1 </f>", "<f=ab>{", "[x]<f=a>", "<f=a><|im_start|>"});
}

TEST(LlgRuleTextTest, StructuralTagsThatMustCome) {
  const std::vector<StructuralTagRule::Tag> tags = {{"<f>", R"({"type":"integer"})", "</f>"}};
  const Rule at_least_one({.rule = StructuralTagRule{tags, {"<f>"}, true, false}, .start = {}});
  at_least_one.Complete({"<f>1</f>", "<f>1</f> and <f>2</f> the"});
  at_least_one.Incomplete({"", "<f>1"});
  at_least_one.Forbidden({"a", "<f>1</f><f>x"});
  const Rule one({.rule = StructuralTagRule{tags, {"<f>"}, true, true}, .start = {}});
  one.Complete({"<f>1</f>"});
  one.Forbidden({"a", "<f>1</f>a"});
  const Rule at_most_one({.rule = StructuralTagRule{tags, {"<f>"}, false, true}, .start = {}});
  at_most_one.Complete({"", "the", "the <f>1</f>", "<|im_start|>a<f>1</f>"});
  at_most_one.Forbidden({"<f>1</f>a", "<f>1</f><f>"});
}

TEST(LlgRuleTextTest, StructuralTagsOfControlTokens) {
  const Rule rule(
      {.rule = StructuralTagRule{{{"<|im_start|>call ", R"({"type":"integer"})", "<|im_start|>"}},
                                 {"<|im_start|>"}},
       .start = {}});
  rule.Complete({"", "the", "the<|im_start|>call 1<|im_start|> the"});
  rule.Incomplete({"<|im_start|>", "<|im_start|>call 1"});
  rule.Forbidden({"<|im_start|>1", "a<|im_start|>call 1<|im_start|><|im_start|>x"});
}

TEST(LlgRuleTextTest, SchemasThatTheLibraryAloneMisreads) {
  // A name that is spelled with escapes is the same name.
  const Rule escapes = Schema(R"({"properties":{"a":{"type":"null"}}})");
  escapes.Complete({R"({"a":null})", R"({"b":1})", R"({"b\n":1})"});
  escapes.Forbidden({R"({"\u0061":1})", R"({"a":1})"});
  const Rule prefix = Schema(
      R"({"type":"array","prefixItems":[{"type":"null"}],"items":{"type":"boolean"},
          "additionalItems":true})");
  prefix.Complete({"[null,true]"});
  prefix.Forbidden({"[true]"});
  const Rule split = Schema(
      R"({"$schema":"http://json-schema.org/draft-07/schema#","type":"array",
          "items":[{"type":"null"}],"anyOf":[{"maxItems":3}],"additionalItems":false})");
  split.Complete({"[null]", "[]"});
  split.Forbidden({"[null,null]"});
  const Rule brackets = Schema(R"({"type":"string","pattern":"^[[a&&b]+$"})");
  brackets.Complete({"\"[a&b\""});
  brackets.Forbidden({"\"c"});
  const Rule date = Schema(R"({"type":"string","format":"date"})");
  date.Complete({"\"2024-02-29\"", "\"2023-12-31\""});
  date.Forbidden({"\"2023-02-29", "\"0000", "\"2023-13"});
  const Rule order = Schema(R"({"properties":{"b":true},"required":["b"],"type":"object",
                               "allOf":[{"properties":{"a":true},"required":["a"]}]})");
  order.Complete({"{\"b\":1,\"a\":2}"});
  order.Forbidden({"{\"a"});
  const Rule both = Schema(R"({"type":"string","pattern":"^2","format":"date-time"})");
  both.Complete({"\"2024-02-29T10:00:00Z\""});
  both.Forbidden({"\"1"});
  const Rule host = Schema(R"({"type":"string","format":"hostname"})");
  host.Complete({"\"a-b.example\""});
  host.Forbidden({"\"xn--", "\"-", "\"a.."});
  const Rule white = Schema(R"({"type":"string","pattern":"^[^\\s]\\S\\d$"})");
  white.Complete({"\"aé1\""});
  white.Forbidden({"\"\ufeff", "\"a\ufeff", "\"ab٣"});
  // None of these needs control characters, which only the escape has.
  const Rule no_control = Schema(R"({"type":"object","properties":{"name":{"type":"string"},
      "re":{"type":"string","pattern":"^[^\\u0000-\\u001F]+$"}},"required":["name"]})");
  no_control.Complete({R"({"name":"x","re":"a\"b"})"});
  no_control.Forbidden({R"({"name":"x","\u006e)"});
  const Rule annotated = Schema(R"({"patternProperties":{"^a$":{"type":"integer"}},
      "additionalProperties":{"type":"string"},"type":"object","description":"\u0001"})");
  annotated.Complete({R"({"a":1,"b":"x"})"});
  annotated.Forbidden({R"({"\u0061)"});
  const Rule control = Schema(R"({"type":"object","additionalProperties":false,"properties":
      {"a\u0001":{"const":"\u0002"},"b":{"type":"string"}}})");
  control.Complete({R"({"a\u0001":"\u0002","b":"\u0003"})", R"({"b":"x"})"});
  control.Forbidden({R"({"\u0062)", R"({"a\u0002)"});
  const Rule unbounded = Schema(R"({"type":"string","maxLength":9007199254740991})");
  unbounded.Complete({"\"the name\""});
}

// An output that began it would go on for ever.
TEST(LlgRuleTextTest, RecursionThatNeverEndsIsNotOffered) {
  const Rule schema = Schema(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/a"},
      "b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"additionalProperties":false,
      "$defs":{"a":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}}})");
  schema.Complete({"{}", R"({"b":null})"});
  schema.Forbidden({R"({"a)", R"({"b":{)"});
  const Rule kinds = Schema(R"({"type":["string","array"],"minItems":1,
      "items":{"$ref":"#/$defs/a"},"$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"},
      "minItems":2}}})");
  kinds.Complete({R"("a")"});
  kinds.Forbidden({"["});
  const Rule ebnf = Ebnf("root ::= a | b\na ::= \"x\" a\nb ::= \"y\" a? \"z\"*");
  ebnf.Complete({"y", "yzz"});
  ebnf.Forbidden({"x", "yx"});
}

// A property fulfils what applies to it in any reading of a name's pattern.
TEST(LlgRuleTextTest, NamesByPatternsOfSeveralReadings) {
  const Rule no_digit = Schema(R"({"patternProperties":{"^\\D$":{"type":"integer"}}})");
  no_digit.Complete({R"({"7":"x"})", R"({"٣":1})", R"({"ab":"x"})"});
  no_digit.Forbidden({R"({"٣":"x)", R"({"a":"x)"});
  const Rule word = Schema(R"({"patternProperties":{"^\\w+$":{"type":"integer"}}})");
  word.Complete({R"({"-":"x"})", R"({"é":1})"});
  word.Forbidden({R"({"é":"x)"});
  const Rule closed = Schema(R"({"properties":{"id":{}},"additionalProperties":false,
                                 "patternProperties":{"^\\w+$":{"type":"integer"}}})");
  closed.Complete({R"({"id":1,"a":1})"});
  closed.Forbidden({R"({"id":"x)", R"({"é)", R"({"-)"});
}

// The library descends with references and groups.
TEST(LlgRuleTextTest, DeepRulesHaveTheStack) {
  ConstraintLimits limits;
  limits.rule_bytes = 256 << 20;
  std::string chain = "{\"$defs\":{";
  for (int i = 0; i < 900; ++i) {
    chain += "\"" + std::to_string(i) + "\":";
    for (int level = 0; level < 8; ++level) chain += "{\"anyOf\":[";
    chain += "{\"$ref\":\"#/$defs/" + std::to_string(i + 1) + "\"}";
    for (int level = 0; level < 8; ++level) chain += "]}";
    chain += ',';
  }
  chain += "\"900\":{\"type\":\"null\"}},\"$ref\":\"#/$defs/0\"}";
  Rule({.rule = JsonSchemaRule{chain}, .start = {}}, limits).Complete({"null"});

  std::string groups = "start: a0\n";
  for (int i = 0; i < 1900; ++i) {
    groups += "a" + std::to_string(i) + ": " + std::string(25, '(') + "a" + std::to_string(i + 1) +
              std::string(25, ')') + "\n";
  }
  Rule({.rule = GrammarRule{GrammarDialect::kLark, groups + "a1900: \"the\""}, .start = {}}, limits)
      .Complete({"the"});
}

// In kB.
int64_t MostAddressSpace() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t peak = 0;
    if (word == "VmPeak:" && status >> peak) return peak;
  }
  return 0;
}

TEST(LlgRuleTextTest, StacksAreThoseOfTheClientsText) {
  std::string pattern = "^";
  for (int i = 0; i < 30'000; ++i) pattern += R"(\\S)";
  const int64_t before = MostAddressSpace();
  ASSERT_GT(before, 0);
  const auto rule =
      Compile({.rule = JsonSchemaRule{R"({"pattern":")" + pattern + "\"}"}, .start = {}});
  EXPECT_EQ(GetErrorDetails(rule.status()).reason, "CONSTRAINT_TOO_LARGE") << rule.status();
  EXPECT_LT(MostAddressSpace() - before, 2 << 20);
}

TEST(LlgRuleTextTest, RefusalsOfTheLibrary) {
  struct Case {
    const char* schema;
    const char* reason;
    const char* message;
  };
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 1500; ++i) wide += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\":{}";
  wide += "}}";
  const Case cases[] = {
      // Its first mask takes too much.
      {wide.c_str(), "CONSTRAINT_TOO_LARGE", "f: "},
      {R"({"properties":{"a":{"oneOf":[{"type":"number"},{"type":"integer"}]}}})",
       "CONSTRAINT_UNSUPPORTED", "f: /properties/a/oneOf: "},
      {R"({"properties":{"a":{}},"maxProperties":2})", "CONSTRAINT_UNSUPPORTED",
       "f: /maxProperties: "},
      {R"({"patternProperties":{"a":{},"b":{}}})", "CONSTRAINT_UNSUPPORTED",
       "f: /patternProperties: "},
      {R"({"patternProperties":{"^\\d+$":{"type":"integer"},"^[0-9]+$":{"maximum":5}}})",
       "CONSTRAINT_UNSUPPORTED", "f: /patternProperties: two of the patterns"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "CONSTRAINT_UNSUPPORTED", "f: /pattern: "},
      {R"({"type":"string","pattern":"(a"})", "CONSTRAINT_INVALID",
       "f: /pattern: a group is not closed"},
      {R"({"type":"number","maximum":1e25})", "CONSTRAINT_UNSUPPORTED", "f: /maximum: "},
      {R"({"type":"integer","minimum":3,"maximum":2})", "CONSTRAINT_UNSATISFIABLE", "f: "},
      {R"({"type":"array","items":false,"minItems":1})", "CONSTRAINT_UNSATISFIABLE", "f: "},
      {"false", "CONSTRAINT_UNSATISFIABLE", "f: "},
      {R"({"$ref":"#"})", "CONSTRAINT_UNSATISFIABLE", "f: "},
      {R"({"type":"number","exclusiveMinimum":1,"maximum":1})", "CONSTRAINT_UNSATISFIABLE", "f: "},
      {R"({"exclusiveMinimum":1,"type":"number","allOf":[{"exclusiveMaximum":1}]})",
       "CONSTRAINT_UNSATISFIABLE", "f: "},
  };
  for (const Case& c : cases) {
    const auto rule = Compile({.rule = JsonSchemaRule{c.schema}, .start = {}});
    ASSERT_FALSE(rule.ok()) << std::string(c.schema).substr(0, 100);
    EXPECT_EQ(GetErrorDetails(rule.status()).reason, c.reason) << rule.status();
    EXPECT_THAT(std::string(rule.status().message()), ::testing::StartsWith(c.message));
  }
}

}  // namespace
}  // namespace orcd
