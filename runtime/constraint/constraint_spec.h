// The rules that a request may ask of its output's form.
#ifndef ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_SPEC_H_
#define ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_SPEC_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace orcd {

// A JSON document that the schema accepts. The text is JSON.
struct JsonSchemaRule {
  std::string schema;
};
// Any JSON object.
struct JsonObjectRule {};
// The whole output matches the expression, in the syntax of Rust's regex crate.
struct RegexRule {
  std::string expression;
};
enum class GrammarDialect {
  // llguidance's variant of Lark.
  kLark,
  // llama.cpp's GBNF and the EBNF that clients of vLLM send.
  kEbnf,
};
struct GrammarRule {
  GrammarDialect dialect = GrammarDialect::kLark;
  std::string grammar;
};
// The output is one of these texts.
struct ChoiceRule {
  std::vector<std::string> choices;
};
// Free text in which each trigger begins a tag that must then be complete: `begin`, JSON that the
// schema accepts, `end`. Every `begin` begins with one of the triggers. An empty schema accepts any
// JSON; `end` may be empty.
struct StructuralTagRule {
  struct Tag {
    std::string begin;
    std::string schema;
    std::string end;
  };
  std::vector<Tag> tags;
  std::vector<std::string> triggers;
  // The output begins with a tag, without text before it.
  bool at_least_one = false;
  // The output ends after its first tag.
  bool stop_after_first = false;
};

// The place where the rule begins; what comes before is free. The output may not end before the
// rule is fulfilled.
struct StartAtFirstToken {};
struct StartAfterToken {
  int32_t token = 0;
};
struct StartAfterString {
  std::string text;
};

struct ConstraintSpec {
  std::variant<JsonSchemaRule, JsonObjectRule, RegexRule, GrammarRule, ChoiceRule,
               StructuralTagRule>
      rule;
  std::variant<StartAtFirstToken, StartAfterToken, StartAfterString> start;
  // The name that errors give the rule: the request's field, such as `constraint.json_schema`. For
  // StructuralTagRule and the start, the names begin with it.
  std::string field = "constraint";
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_CONSTRAINT_SPEC_H_
