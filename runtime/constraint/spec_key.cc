#include "runtime/constraint/spec_key.h"

#include "absl/strings/str_cat.h"

namespace orcd {
namespace {

// Calls take(text) for each text of `spec`, in order.
template <typename Take>
void ForEachText(const ConstraintSpec& spec, Take take) {
  struct Visitor {
    void operator()(const JsonSchemaRule& rule) const { take(rule.schema); }
    void operator()(const JsonObjectRule&) const {}
    void operator()(const RegexRule& rule) const { take(rule.expression); }
    void operator()(const GrammarRule& rule) const { take(rule.grammar); }
    void operator()(const ChoiceRule& rule) const {
      for (const std::string& choice : rule.choices) take(choice);
    }
    void operator()(const StructuralTagRule& rule) const {
      for (const StructuralTagRule::Tag& tag : rule.tags) {
        take(tag.begin);
        take(tag.schema);
        take(tag.end);
      }
      for (const std::string& trigger : rule.triggers) take(trigger);
    }

    Take& take;
  };
  std::visit(Visitor{take}, spec.rule);
  if (const auto* start = std::get_if<StartAfterString>(&spec.start)) take(start->text);
}

}  // namespace

std::string KeyOf(const ConstraintSpec& spec) {
  std::string key = absl::StrCat(spec.rule.index(), " ", spec.start.index(), " ", spec.field.size(),
                                 ":", spec.field);
  if (const auto* grammar = std::get_if<GrammarRule>(&spec.rule)) {
    absl::StrAppend(&key, static_cast<int>(grammar->dialect), " ");
  }
  // Tags and triggers are both lists of texts.
  if (const auto* tags = std::get_if<StructuralTagRule>(&spec.rule)) {
    absl::StrAppend(&key, tags->tags.size(), " ", static_cast<int>(tags->at_least_one),
                    static_cast<int>(tags->stop_after_first), " ");
  }
  ForEachText(spec,
              [&](const std::string& text) { absl::StrAppend(&key, text.size(), ":", text); });
  return key;
}

size_t TextBytes(const ConstraintSpec& spec) {
  size_t bytes = 0;
  ForEachText(spec, [&](const std::string& text) { bytes += text.size(); });
  return bytes;
}

}  // namespace orcd
