#include "worker/api/orcd/constraint_translation.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr char kConstraint[] = "constraint";
constexpr size_t kMaxAfterStringBytes = 256;

absl::StatusOr<GrammarRule> TranslateGrammar(v1::Grammar& grammar) {
  GrammarRule rule;
  switch (grammar.dialect()) {
    case v1::GRAMMAR_DIALECT_LARK:
      rule.dialect = GrammarDialect::kLark;
      break;
    case v1::GRAMMAR_DIALECT_EBNF:
      rule.dialect = GrammarDialect::kEbnf;
      break;
    default:
      return InvalidField(
          absl::StrCat(kConstraint, ".grammar.dialect"),
          absl::StrCat(grammar.dialect(),
                       " is no dialect; use GRAMMAR_DIALECT_LARK or GRAMMAR_DIALECT_EBNF"));
  }
  rule.grammar = std::move(*grammar.mutable_text());
  return rule;
}

StructuralTagRule TranslateTags(v1::StructuralTags& tags) {
  StructuralTagRule rule;
  for (v1::StructuralTag& tag : *tags.mutable_tags()) {
    rule.tags.push_back({.begin = std::move(*tag.mutable_begin()),
                         .schema = std::move(*tag.mutable_json_schema()),
                         .end = std::move(*tag.mutable_end())});
  }
  for (std::string& trigger : *tags.mutable_triggers()) rule.triggers.push_back(std::move(trigger));
  return rule;
}

// Sets the rule and the name of its field.
absl::Status TranslateRule(v1::Constraint& constraint, ConstraintSpec& spec) {
  switch (constraint.rule_case()) {
    case v1::Constraint::kJsonSchema:
      spec.rule = JsonSchemaRule{std::move(*constraint.mutable_json_schema())};
      spec.field = "constraint.json_schema";
      return absl::OkStatus();
    case v1::Constraint::kJsonObject:
      spec.field = "constraint.json_object";
      spec.rule = JsonObjectRule{};
      if (constraint.json_object()) return absl::OkStatus();
      return InvalidField(spec.field, "is false; set it to true, or leave constraint out");
    case v1::Constraint::kRegex:
      spec.rule = RegexRule{std::move(*constraint.mutable_regex())};
      spec.field = "constraint.regex";
      return absl::OkStatus();
    case v1::Constraint::kGrammar: {
      ORCD_ASSIGN_OR_RETURN(spec.rule, TranslateGrammar(*constraint.mutable_grammar()));
      spec.field = "constraint.grammar";
      return absl::OkStatus();
    }
    case v1::Constraint::kChoice: {
      ChoiceRule rule;
      for (std::string& choice : *constraint.mutable_choice()->mutable_choices()) {
        rule.choices.push_back(std::move(choice));
      }
      spec.rule = std::move(rule);
      spec.field = "constraint.choice";
      return absl::OkStatus();
    }
    case v1::Constraint::kStructuralTags:
      spec.rule = TranslateTags(*constraint.mutable_structural_tags());
      spec.field = "constraint.structural_tags";
      return absl::OkStatus();
    case v1::Constraint::RULE_NOT_SET:
      break;
  }
  return InvalidField(kConstraint,
                      "has no rule; set json_schema, json_object, regex, grammar, choice or "
                      "structural_tags");
}

}  // namespace

absl::StatusOr<ConstraintSpec> TranslateConstraint(v1::Constraint& constraint) {
  ConstraintSpec spec;
  ORCD_RETURN_IF_ERROR(TranslateRule(constraint, spec));
  if (constraint.has_after_token()) {
    // An id beyond any vocabulary becomes negative; the check against the vocabulary catches it.
    spec.start = StartAfterToken{static_cast<int32_t>(constraint.after_token())};
  }
  if (constraint.has_after_string()) {
    const size_t bytes = constraint.after_string().size();
    if (bytes == 0 || bytes > kMaxAfterStringBytes) {
      return InvalidField(
          absl::StrCat(kConstraint, ".after_string"),
          absl::StrCat("has ", bytes, " bytes; 1 to ", kMaxAfterStringBytes, " are allowed"));
    }
    spec.start = StartAfterString{std::move(*constraint.mutable_after_string())};
  }
  return spec;
}

}  // namespace orcd
