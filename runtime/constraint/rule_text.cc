#include "runtime/constraint/rule_text.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/constraint/ebnf.h"
#include "runtime/constraint/free_text.h"
#include "runtime/constraint/json_schema.h"
#include "runtime/constraint/lark_text.h"
#include "runtime/constraint/rule_error.h"
#include "runtime/constraint/spec_key.h"
#include "runtime/constraint/tag_rules.h"

namespace orcd {
namespace {

constexpr ptrdiff_t kMaxOperators = 24;

constexpr size_t kMaxStart = 256;
constexpr std::string_view kAnyObject = R"({"type":"object"})";

// A visitor of variants.
template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

bool IsUtf8(std::string_view text) { return FindInvalidUtf8(text) == text.size(); }

// The library reads its text up to the first NUL.
absl::Status CheckText(std::string_view text, const std::string& field) {
  if (text.empty()) return InvalidRule(field, "is empty");
  if (!IsUtf8(text)) return InvalidRule(field, "is not UTF-8");
  if (text.find('\0') != std::string_view::npos) return InvalidRule(field, "has a NUL character");
  return absl::OkStatus();
}

absl::Status CheckRegex(std::string_view expression, const std::string& field) {
  ORCD_RETURN_IF_ERROR(CheckText(expression, field));
  const size_t last = expression.find_last_not_of('\\');
  const size_t backslashes = expression.size() - (last == std::string_view::npos ? 0 : last + 1);
  if (backslashes % 2 == 1) return InvalidRule(field, "ends with a backslash");
  // The library looks ahead for what such a group matches.
  if (expression.find("<stop>") != std::string_view::npos) {
    return UnsupportedRule(field, "a group may not have the name `stop`; rename it");
  }
  return absl::OkStatus();
}

// The number of lines that begin like a definition.
int CountDefinitions(std::string_view lark) {
  int count = 0;
  while (!lark.empty()) {
    const size_t end = std::min(lark.find('\n'), lark.size());
    std::string_view line = lark.substr(0, end);
    lark.remove_prefix(std::min(end + 1, lark.size()));
    line.remove_prefix(std::min(line.find_first_not_of(" \t\r{"), line.size()));
    const auto name_end = std::ranges::find_if_not(line, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '?' ||
             c == '!';
    });
    const auto length = static_cast<size_t>(name_end - line.begin());
    line.remove_prefix(length);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    constexpr std::string_view kAfterName = ":[.{";
    if (length > 0 && !line.empty() && kAfterName.find(line.front()) != std::string_view::npos) {
      ++count;
    }
  }
  return count;
}

absl::Status CheckGrammar(const GrammarRule& rule, const std::string& field) {
  ORCD_RETURN_IF_ERROR(CheckText(rule.grammar, field));
  if (rule.dialect == GrammarDialect::kEbnf) return EbnfToLark(rule.grammar, field).status();
  if (CountDefinitions(rule.grammar) > kMaxDefinitions) {
    return RuleTooLarge(field, "has more than " + std::to_string(kMaxDefinitions) + " definitions");
  }
  // The operators `&` and `~`, which the library computes without a bound.
  const auto operators =
      std::ranges::count_if(rule.grammar, [](char c) { return c == '&' || c == '~'; });
  if (operators > kMaxOperators) {
    return RuleTooLarge(field, "has " + std::to_string(operators) +
                                   " characters & and ~, which combine expressions; at most " +
                                   std::to_string(kMaxOperators) + " are accepted");
  }
  // The library would read the schema as it is, with its own options, and misread some.
  if (rule.grammar.find("%json") != std::string::npos) {
    return UnsupportedRule(field,
                           "`%json` is not supported in a grammar; send the schema as a JSON "
                           "schema or in a structural tag, or write the form out as rules");
  }
  return absl::OkStatus();
}

absl::Status CheckChoices(const ChoiceRule& rule, const std::string& field) {
  if (rule.choices.empty()) return InvalidRule(field, "there is no choice");
  for (const std::string& choice : rule.choices) {
    if (choice.empty()) return InvalidRule(field, "a choice is empty");
    if (!IsUtf8(choice)) return InvalidRule(field, "a choice is not UTF-8");
  }
  return absl::OkStatus();
}

std::string TagField(const ConstraintSpec& spec, size_t tag) {
  return spec.field + ".tags[" + std::to_string(tag) + "]";
}

absl::Status CheckTagTexts(const StructuralTagRule& rule, const ConstraintSpec& spec,
                           int max_depth) {
  ORCD_RETURN_IF_ERROR(CheckTags(rule, spec.field));
  for (size_t i = 0; i < rule.tags.size(); ++i) {
    const StructuralTagRule::Tag& tag = rule.tags[i];
    if (!IsUtf8(tag.begin) || !IsUtf8(tag.end)) {
      return InvalidRule(TagField(spec, i), "is not UTF-8");
    }
    if (tag.schema.empty()) continue;
    ORCD_RETURN_IF_ERROR(CheckSchema(tag.schema, TagField(spec, i) + ".json_schema", max_depth));
  }
  return absl::OkStatus();
}

absl::StatusOr<LarkPart> RulePart(const ConstraintSpec& spec, const Tokenizer& tokenizer) {
  using Result = absl::StatusOr<LarkPart>;
  return std::visit(
      Overloaded{[](const JsonSchemaRule& rule) -> Result {
                   return LarkPart{{}, "%json " + SchemaForLibrary(rule.schema)};
                 },
                 [](const JsonObjectRule&) -> Result {
                   return LarkPart{{}, "%json " + std::string(kAnyObject)};
                 },
                 [](const RegexRule& rule) -> Result {
                   return LarkPart{"REGEX: " + LarkRegex(rule.expression) + "\n", "REGEX"};
                 },
                 [&](const GrammarRule& rule) -> Result {
                   if (rule.dialect == GrammarDialect::kEbnf) {
                     return EbnfToLark(rule.grammar, spec.field);
                   }
                   return LarkPart{{}, "%lark {\n" + rule.grammar + "\n}"};
                 },
                 [](const ChoiceRule& rule) -> Result {
                   // One terminal: as alternatives of a rule, many choices take minutes.
                   LarkPart part = {"CHOICE: ", "CHOICE"};
                   for (size_t i = 0; i < rule.choices.size(); ++i) {
                     if (i > 0) part.definitions += " | ";
                     part.definitions += LarkString(rule.choices[i]);
                   }
                   part.definitions += '\n';
                   return part;
                 },
                 [&](const StructuralTagRule& rule) -> Result {
                   return TagRules(rule, spec.field, tokenizer);
                 }},
      spec.rule);
}

// Free text until the start's text is complete.
absl::StatusOr<LarkPart> StartPart(const StartAfterString& start, const ConstraintSpec& spec,
                                   const Tokenizer& tokenizer) {
  const std::vector<TextPiece> pieces = SplitControlTokens(start.text, tokenizer);
  if (pieces.size() != 1) {
    return UnsupportedRule(spec.field,
                           "after_string: may be text or a special token, but not both; use the id "
                           "of its last token as after_token");
  }
  if (HasEndToken(pieces, tokenizer)) {
    return InvalidRule(spec.field, "after_string: ends the generation: nothing can come after it");
  }
  LarkPart part = {{}, "begin"};
  const int32_t token = pieces.front().token;
  const std::string mark = std::string(kAnyText) + " " + LarkPieces(pieces);
  std::vector<int32_t> marks;
  if (token >= 0) marks.push_back(token);
  const std::string others = OtherControlTokens(tokenizer, marks);
  part.definitions = (token >= 0 ? "mark: " : "mark[lazy]: ") + mark + "\nbegin: ";
  if (!others.empty())
    part.definitions.append("(").append(kAnyText).append(" ").append(others).append(")* ");
  part.definitions += "mark\n";
  return part;
}

}  // namespace

absl::Status CheckRule(const ConstraintSpec& spec, const ConstraintLimits& limits) {
  if (const size_t bytes = TextBytes(spec); bytes > limits.max_bytes) {
    return RuleTooLarge(spec.field, "has " + std::to_string(bytes) + " bytes; at most " +
                                        std::to_string(limits.max_bytes) + " are accepted");
  }
  if (const auto* start = std::get_if<StartAfterString>(&spec.start)) {
    if (start->text.empty() || start->text.size() > kMaxStart || !IsUtf8(start->text)) {
      return InvalidRule(spec.field, "after_string: must be UTF-8 of 1 to 256 bytes");
    }
  }
  const std::string& field = spec.field;
  return std::visit(
      Overloaded{[&](const JsonSchemaRule& rule) {
                   return CheckSchema(rule.schema, field, limits.max_depth);
                 },
                 [](const JsonObjectRule&) { return absl::OkStatus(); },
                 [&](const RegexRule& rule) { return CheckRegex(rule.expression, field); },
                 [&](const GrammarRule& rule) { return CheckGrammar(rule, field); },
                 [&](const ChoiceRule& rule) { return CheckChoices(rule, field); },
                 [&](const StructuralTagRule& rule) {
                   return CheckTagTexts(rule, spec, limits.max_depth);
                 }},
      spec.rule);
}

absl::StatusOr<RuleText> ToRuleText(const ConstraintSpec& spec, const Tokenizer& tokenizer) {
  const auto* start = std::get_if<StartAfterString>(&spec.start);
  if (!start) {
    if (const auto* rule = std::get_if<JsonSchemaRule>(&spec.rule)) {
      return RuleText{"json_schema", SchemaForLibrary(rule->schema)};
    }
    if (std::holds_alternative<JsonObjectRule>(spec.rule)) {
      return RuleText{"json_schema", std::string(kAnyObject)};
    }
    const auto* grammar = std::get_if<GrammarRule>(&spec.rule);
    if (grammar && grammar->dialect == GrammarDialect::kLark) {
      return RuleText{"lark", grammar->grammar};
    }
  }
  ORCD_ASSIGN_OR_RETURN(LarkPart rule, RulePart(spec, tokenizer));
  std::string text = "start: ";
  if (start) {
    ORCD_ASSIGN_OR_RETURN(const LarkPart begin, StartPart(*start, spec, tokenizer));
    text.append(begin.expression).append(" ").append(rule.expression).append("\n");
    text.append(begin.definitions);
  } else {
    text.append(rule.expression).append("\n");
  }
  if (start || std::holds_alternative<StructuralTagRule>(spec.rule)) text += kAnyTextDefinition;
  return RuleText{"lark", text.append(rule.definitions)};
}

}  // namespace orcd
