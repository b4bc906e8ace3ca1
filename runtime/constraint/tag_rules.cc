#include "runtime/constraint/tag_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/constraint/free_text.h"
#include "runtime/constraint/json_schema.h"
#include "runtime/constraint/rule_error.h"

namespace orcd {
namespace {

// Checks compare each trigger with each, and with each tag.
constexpr size_t kMaxTriggers = 64;
constexpr size_t kMaxTags = 1024;

// The triggers that no shorter one begins: text that has one of these has no time for a longer one.
std::vector<std::string_view> FirstTriggers(const StructuralTagRule& rule) {
  std::vector<std::string_view> first;
  for (const std::string_view trigger : rule.triggers) {
    const bool is_first = std::ranges::none_of(rule.triggers, [&](std::string_view other) {
      return other != trigger && trigger.starts_with(other);
    });
    if (is_first && std::ranges::find(first, trigger) == first.end()) first.push_back(trigger);
  }
  return first;
}

std::string JoinText(std::initializer_list<std::string_view> parts) {
  std::string joined;
  for (const std::string_view part : parts) joined += part;
  return joined;
}
std::string InQuotes(std::string_view text) { return JoinText({"\"", text, "\""}); }

// The pieces of `begin` before and after the end of the trigger that it begins with.
struct SplitBegin {
  std::vector<TextPiece> trigger;
  std::vector<TextPiece> rest;
  // False if a control token lies on both sides.
  bool valid = true;
};
SplitBegin Split(std::string_view begin, std::string_view trigger, const Tokenizer& tokenizer) {
  SplitBegin split;
  size_t pos = 0;
  for (TextPiece& piece : SplitControlTokens(begin, tokenizer)) {
    const std::string_view spelling =
        piece.token >= 0 ? tokenizer.TokenText(piece.token) : std::string_view(piece.text);
    const size_t end = pos + spelling.size();
    if (end <= trigger.size()) {
      split.trigger.push_back(std::move(piece));
    } else if (pos >= trigger.size()) {
      split.rest.push_back(std::move(piece));
    } else if (piece.token >= 0) {
      split.valid = false;
    } else {
      split.trigger.push_back({.text = piece.text.substr(0, trigger.size() - pos)});
      split.rest.push_back({.text = piece.text.substr(trigger.size() - pos)});
    }
    pos = end;
  }
  return split;
}

void AppendOption(std::string_view option, std::string& options) {
  options.append(options.empty() ? "" : " | ").append(option);
}

}  // namespace

absl::Status CheckTags(const StructuralTagRule& rule, const std::string& field) {
  if (rule.tags.empty()) return InvalidRule(field, "there is no tag");
  if (rule.triggers.empty()) return InvalidRule(field, "there is no trigger");
  if (rule.tags.size() > kMaxTags || rule.triggers.size() > kMaxTriggers) {
    return RuleTooLarge(field, "there may be at most " + std::to_string(kMaxTags) + " tags and " +
                                   std::to_string(kMaxTriggers) + " triggers");
  }
  const std::vector<std::string_view> triggers = FirstTriggers(rule);
  for (const std::string_view trigger : triggers) {
    if (trigger.empty()) return InvalidRule(field, "a trigger is empty");
    for (const std::string_view other : triggers) {
      if (other != trigger && trigger.find(other) != std::string_view::npos) {
        return InvalidRule(field, "the trigger " + InQuotes(trigger) + " has another one in it, " +
                                      InQuotes(other));
      }
    }
    if (std::ranges::none_of(rule.tags, [&](const StructuralTagRule::Tag& tag) {
          return tag.begin.starts_with(trigger);
        })) {
      return InvalidRule(field, "no tag begins with the trigger " + InQuotes(trigger));
    }
  }
  for (const StructuralTagRule::Tag& tag : rule.tags) {
    if (std::ranges::none_of(triggers, [&](std::string_view trigger) {
          return std::string_view(tag.begin).starts_with(trigger);
        })) {
      return InvalidRule(field, "the tag " + InQuotes(tag.begin) + " begins with no trigger");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LarkPart> TagRules(const StructuralTagRule& rule, const std::string& field,
                                  const Tokenizer& tokenizer) {
  LarkPart part = {.definitions = {}, .expression = "tags"};
  const auto define = [&](std::string_view name, std::string_view text) {
    part.definitions.append(name).append(": ").append(text).append("\n");
  };
  // Texts that may stand between tags with what follows them, and tags without text before them.
  std::string texts;
  std::string tags;
  std::vector<int32_t> marks;
  const std::vector<std::string_view> triggers = FirstTriggers(rule);
  for (size_t i = 0; i < triggers.size(); ++i) {
    std::string bodies;
    std::vector<TextPiece> trigger;
    for (const StructuralTagRule::Tag& tag : rule.tags) {
      if (!std::string_view(tag.begin).starts_with(triggers[i])) continue;
      SplitBegin split = Split(tag.begin, triggers[i], tokenizer);
      if (!split.valid) {
        return UnsupportedRule(
            field, "the trigger " + InQuotes(triggers[i]) + " ends within a special token");
      }
      const std::vector<TextPiece> end = SplitControlTokens(tag.end, tokenizer);
      if (HasEndToken(split.trigger, tokenizer) || HasEndToken(split.rest, tokenizer) ||
          HasEndToken(end, tokenizer)) {
        return UnsupportedRule(
            field, "the tag " + InQuotes(tag.begin) + " has a token that ends the generation");
      }
      AppendOption(LarkPieces(split.rest), bodies);
      bodies.append(" %json ").append(SchemaForLibrary(tag.schema.empty() ? "{}" : tag.schema));
      bodies.append(" ").append(LarkPieces(end));
      trigger = std::move(split.trigger);
    }
    const bool is_token = trigger.front().token >= 0;
    if (!is_token && trigger.size() > 1) {
      return UnsupportedRule(
          field, "the trigger " + InQuotes(triggers[i]) + " has a special token behind its begin");
    }
    const std::string number = std::to_string(i);
    const std::string mark = LarkPieces(trigger);
    define(JoinText({"body", number}), bodies);
    AppendOption(JoinText({mark, " body", number}), tags);
    if (is_token) {
      marks.push_back(trigger.front().token);
      AppendOption(JoinText({kAnyText, " ", mark, " body", number}), texts);
    } else {
      // Lazy: the text ends with the first trigger in it.
      define(JoinText({"until", number, "[lazy]"}), JoinText({kAnyText, " ", mark}));
      AppendOption(JoinText({"until", number, " body", number}), texts);
    }
  }
  const std::string others = OtherControlTokens(tokenizer, marks);
  if (!others.empty()) define("other", JoinText({kAnyText, " ", others}));
  define("tag", rule.at_least_one ? tags : texts);
  if (rule.stop_after_first && rule.at_least_one) {
    define("tags", "tag");
  } else if (rule.stop_after_first) {
    define("tags", JoinText({others.empty() ? "" : "other* ", "(tag | ", kAnyText, ")"}));
  } else {
    define("text", JoinText({texts, others.empty() ? "" : " | other"}));
    define("tags", JoinText({rule.at_least_one ? "tag " : "", "text* ", kAnyText}));
  }
  return part;
}

}  // namespace orcd
