#include "tools/orcdctl/constraint_options.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/error.h"
#include "tools/orcdctl/generate_options.h"
#include "tools/orcdctl/input.h"

namespace orcd::ctl {
namespace {

// The flags that name a rule, of those given.
std::vector<const char*> RulesIn(const ConstraintOptions& options) {
  std::vector<const char*> flags;
  const auto add = [&flags](bool is_given, const char* flag) {
    if (is_given) flags.push_back(flag);
  };
  add(!options.json_schema.empty(), "--json-schema");
  add(options.json_object, "--json-object");
  add(!options.regex.empty(), "--regex");
  add(!options.lark_file.empty(), "--lark");
  add(!options.ebnf_file.empty(), "--ebnf");
  add(!options.choices.empty(), "--choice");
  add(!options.structural_tags_file.empty(), "--structural-tags");
  return flags;
}

absl::StatusOr<std::string> ReadUtf8File(const char* flag, const std::string& path) {
  ORCD_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  ORCD_RETURN_IF_ERROR(CheckUtf8(flag, text));
  return text;
}

absl::StatusOr<std::string> ReadSchema(const std::string& json_or_path) {
  const auto text = absl::StripAsciiWhitespace(json_or_path);
  if (!absl::StartsWith(text, "{") && text != "true" && text != "false") {
    return ReadUtf8File("--json-schema", json_or_path);
  }
  ORCD_RETURN_IF_ERROR(CheckUtf8("--json-schema", json_or_path));
  return json_or_path;
}

absl::StatusOr<v1::StructuralTags> ReadStructuralTags(const std::string& path) {
  ORCD_ASSIGN_OR_RETURN(const std::string json, ReadUtf8File("--structural-tags", path));
  v1::StructuralTags tags;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &tags);
  if (status.ok()) return tags;
  return absl::InvalidArgumentError(absl::StrCat(
      "--structural-tags: ", status.ToString(),
      R"(; write {"tags": [{"begin": "…", "json_schema": "…", "end": "…"}], "triggers": ["…"]})"));
}

}  // namespace

absl::StatusOr<std::optional<v1::Constraint>> NewConstraint(const ConstraintOptions& options) {
  const std::vector<const char*> rules = RulesIn(options);
  if (rules.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(absl::StrJoin(rules, " and "), ": an answer has one form; give one of them"));
  }
  if (rules.empty()) {
    if (options.after.empty() && !options.after_token) return std::nullopt;
    return absl::InvalidArgumentError(
        "--after and --after-token say where a form begins; give one, such as --json-object");
  }
  v1::Constraint constraint;
  if (!options.json_schema.empty()) {
    ORCD_ASSIGN_OR_RETURN(*constraint.mutable_json_schema(), ReadSchema(options.json_schema));
  }
  if (options.json_object) constraint.set_json_object(true);
  if (!options.regex.empty()) {
    ORCD_RETURN_IF_ERROR(CheckUtf8("--regex", options.regex));
    constraint.set_regex(options.regex);
  }
  if (!options.lark_file.empty()) {
    constraint.mutable_grammar()->set_dialect(v1::GRAMMAR_DIALECT_LARK);
    ORCD_ASSIGN_OR_RETURN(*constraint.mutable_grammar()->mutable_text(),
                          ReadUtf8File("--lark", options.lark_file));
  }
  if (!options.ebnf_file.empty()) {
    constraint.mutable_grammar()->set_dialect(v1::GRAMMAR_DIALECT_EBNF);
    ORCD_ASSIGN_OR_RETURN(*constraint.mutable_grammar()->mutable_text(),
                          ReadUtf8File("--ebnf", options.ebnf_file));
  }
  for (const std::string& choice : options.choices) {
    ORCD_RETURN_IF_ERROR(CheckUtf8("--choice", choice));
    constraint.mutable_choice()->add_choices(choice);
  }
  if (!options.structural_tags_file.empty()) {
    ORCD_ASSIGN_OR_RETURN(*constraint.mutable_structural_tags(),
                          ReadStructuralTags(options.structural_tags_file));
  }
  if (!options.after.empty()) {
    ORCD_RETURN_IF_ERROR(CheckUtf8("--after", options.after));
    constraint.set_after_string(options.after);
  }
  if (options.after_token) constraint.set_after_token(*options.after_token);
  return constraint;
}

}  // namespace orcd::ctl
