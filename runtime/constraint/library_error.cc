#include "runtime/constraint/library_error.h"

#include <initializer_list>
#include <variant>
#include <vector>

#include "runtime/constraint/constraint_errors.h"
#include "runtime/constraint/json_schema.h"
#include "runtime/constraint/rule_error.h"

namespace orcd {
namespace {

std::string Text(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}
bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

using RuleError = absl::Status (*)(std::string_view field, std::string_view message);

// A text of the library's errors, the error of a rule that it means, the keywords of schemas that
// have the fault, and our words for it; without them, the library's.
struct KnownError {
  std::string_view text;
  RuleError error;
  std::vector<std::string_view> keywords = {};
  std::string_view message = {};
};

// In this order: the later texts are more general.
const std::vector<KnownError>& KnownErrors() {
  static const auto* const errors = new std::vector<KnownError>{
      {"nsatisfiable", UnsatisfiableRule},
      {"nable to determine",
       RuleTooLarge,
       {"pattern"},
       "it takes too long to tell if any text matches; simplify the expression"},
      {"can't determine",
       RuleTooLarge,
       {"patternProperties"},
       "it takes too long to tell if two patterns may match the same name; simplify them"},
      {"fuel exhausted",
       RuleTooLarge,
       {},
       "its expressions take more work to prepare than is allowed; simplify them"},
      {"initial lexer configuration",
       RuleTooLarge,
       {},
       "its expressions take more work to prepare than is allowed; simplify them"},
      {"precomputation failed",
       RuleTooLarge,
       {},
       "its expressions take more work to prepare than is allowed; simplify them"},
      {"grammar size", RuleTooLarge, {}, "it has too many parts; simplify it"},
      {"too many states",
       RuleTooLarge,
       {},
       "its expressions have too many states; use fewer repetitions of repetitions"},
      {"too many expressions",
       RuleTooLarge,
       {},
       "its first tokens take more work than one step may; simplify it"},
      {"Too many items",
       RuleTooLarge,
       {},
       "its first tokens have too many readings; use fewer optional parts"},
      {"too big", RuleTooLarge},
      {"too large", RuleTooLarge},
      {"too complex", RuleTooLarge},
      {"too deeply", RuleTooLarge},
      {"too many", RuleTooLarge},
      {"TooComplex", RuleTooLarge},
      {"exceed", RuleTooLarge},
      {"max is", RuleTooLarge},
      {"oneOf",
       UnsupportedRule,
       {"oneOf"},
       "two of the schemas may accept the same document; make them differ by type, or by a "
       "required property with different constants"},
      {"min/maxProperties",
       UnsupportedRule,
       {"minProperties", "maxProperties"},
       "only supported where all of `properties` are required, or where the bound is 1 and "
       "`additionalProperties` is false"},
      {"are not disjoint",
       UnsupportedRule,
       {"patternProperties"},
       "two of the patterns may match the same name"},
      {"circular references",
       UnsupportedRule,
       {"$ref"},
       "leads back to itself and has keywords beside it"},
      {"Failed to generate regex for",
       UnsupportedRule,
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "enum"},
       "is beyond the numbers that can be enforced"},
      {"not supported", UnsupportedRule, {"pattern", "patternProperties"}},
      {"nsupported", UnsupportedRule},
      {"Unimplemented", UnsupportedRule},
      {"Unknown format", UnsupportedRule, {"format"}},
      {"regex", InvalidRule, {"pattern", "patternProperties"}},
  };
  return *errors;
}

// An error of a regular expression has its cause in its last line.
std::string Cause(std::string_view text) {
  constexpr std::string_view kRegexError = "regex parse error:";
  constexpr std::string_view kCause = "\nerror: ";
  const size_t cause = text.find(kCause);
  if (!Contains(text, kRegexError) || cause == std::string_view::npos) {
    return OneLine(text);
  }
  return Text({kRegexError, " ", OneLine(text.substr(cause + kCause.size()))});
}

// Pointers to the uses of the keywords in the rule's schemas.
std::string FindUses(const ConstraintSpec& spec, const std::vector<std::string_view>& keywords) {
  constexpr size_t kMaxUses = 3;
  std::string uses;
  const auto add = [&](const std::string& schema, const std::string& prefix) {
    for (const std::string_view keyword : keywords) {
      for (const std::string& pointer : FindKeyword(schema, keyword, kMaxUses)) {
        uses += Text({uses.empty() ? "" : ", ", prefix, pointer});
      }
    }
  };
  if (const auto* rule = std::get_if<JsonSchemaRule>(&spec.rule)) add(rule->schema, "");
  if (const auto* rule = std::get_if<StructuralTagRule>(&spec.rule)) {
    for (size_t i = 0; i < rule->tags.size(); ++i) {
      if (rule->tags[i].schema.empty()) continue;
      add(rule->tags[i].schema, Text({"tags[", std::to_string(i), "].json_schema"}));
    }
  }
  return uses;
}

// The pointer to the definition that the library was compiling; empty if it names none.
std::string DefinitionOf(std::string_view text) {
  constexpr std::string_view kWhile = "while processing ";
  const size_t at = text.rfind(kWhile);
  if (at == std::string_view::npos) return {};
  const std::string uri = OneLine(text.substr(at + kWhile.size()));
  const size_t fragment = uri.find('#');
  return fragment == std::string::npos ? std::string() : uri.substr(fragment + 1);
}

// The message after the places where its cause stands.
std::string At(const ConstraintSpec& spec, const std::vector<std::string_view>& keywords,
               std::string_view text, std::string_view message) {
  std::string places = FindUses(spec, keywords);
  if (places.empty()) places = DefinitionOf(text);
  return places.empty() ? std::string(message) : Text({places, ": ", message});
}

std::string FailedAfter(std::string_view field, size_t tokens) {
  return Text({"the rule of ", field, " failed after ", std::to_string(tokens),
               tokens == 1 ? " token: " : " tokens: "});
}

std::string Mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

absl::Status NoMemoryForAll(std::string_view field, const LibraryError& error) {
  return ConstraintLimitReached(
      "constraints:memory",
      Text({field, ": the constraints of all requests hold the ", Mebibytes(error.most_held),
            " of memory that they may; try again later or on another worker"}));
}

}  // namespace

absl::Status RefusalOf(const ConstraintSpec& spec, const LibraryError& error) {
  const std::string& field = spec.field;
  switch (error.stop) {
    case LibraryStop::kMemory:
      return RuleTooLarge(field, Text({"takes more than ", Mebibytes(error.most_bytes),
                                       " of memory to compile; simplify it"}));
    case LibraryStop::kAllMemory:
      return NoMemoryForAll(field, error);
    case LibraryStop::kTime:
      return RuleTooLarge(field,
                          Text({"takes more than the ", absl::FormatDuration(error.most_time),
                                " to compile that a constraint may take; simplify it"}));
    case LibraryStop::kNone:
      break;
  }
  const std::string_view text = error.text;
  if (text.starts_with("panic")) {
    return UnsupportedRule(field, "cannot be compiled as it is written; write it in another way");
  }
  // The library's word for a grammar that cannot go on.
  if (Contains(text, "NoExtension")) {
    return UnsatisfiableRule(field, "no output fulfils the rule");
  }
  constexpr std::string_view kUnsatisfiable = "Unsatisfiable schema: ";
  if (const size_t at = text.find(kUnsatisfiable); at != std::string_view::npos) {
    const std::string why = OneLine(text.substr(at + kUnsatisfiable.size()));
    return UnsatisfiableRule(field,
                             At(spec, {}, text, Text({"no document fulfils the schema: ", why})));
  }
  for (const KnownError& known : KnownErrors()) {
    if (!Contains(text, known.text)) continue;
    const std::string message = known.message.empty() ? Cause(text) : std::string(known.message);
    return known.error(field, At(spec, known.keywords, text, message));
  }
  return InvalidRule(field, At(spec, {}, text, Cause(text)));
}

absl::Status DeadEnd(std::string_view field, size_t tokens) {
  return FailedRule(absl::StatusCode::kInvalidArgument,
                    Text({FailedAfter(field, tokens),
                          "nothing may follow them, and they do not fulfil it; correct the rule"}));
}

absl::Status FailureOf(std::string_view field, size_t tokens, const LibraryError& error) {
  const std::string begin = FailedAfter(field, tokens);
  constexpr std::string_view kSimpler = "; a simpler rule takes less";
  switch (error.stop) {
    case LibraryStop::kAllMemory:
      return NoMemoryForAll(field, error);
    case LibraryStop::kMemory:
      return FailedRule(absl::StatusCode::kResourceExhausted,
                        Text({begin, "its state takes more than ", Mebibytes(error.most_bytes),
                              " of memory", kSimpler}));
    case LibraryStop::kTime:
    case LibraryStop::kNone:
      break;
  }
  const std::string cause = OneLine(error.text);
  if (Contains(cause, "satisfy the grammar")) {
    return BrokenRule(Text({begin, "the token does not continue it"}));
  }
  if (cause.starts_with("panic")) {
    // Attributes of a client's grammar that cannot be applied together.
    return FailedRule(absl::StatusCode::kInvalidArgument,
                      Text({begin,
                            "its attributes cannot be applied together; use fewer "
                            "attributes of rules and terminals"}));
  }
  // The library's word for a grammar that cannot go on.
  if (Contains(cause, "NoExtension")) return DeadEnd(field, tokens);
  if (Contains(cause, "too many expressions")) {
    return FailedRule(absl::StatusCode::kResourceExhausted,
                      Text({begin, "the next token takes more work than one step may", kSimpler}));
  }
  if (Contains(cause, "too many states")) {
    return FailedRule(absl::StatusCode::kResourceExhausted,
                      Text({begin, "its expressions have too many states", kSimpler}));
  }
  if (Contains(cause, "Too many items") || Contains(cause, "too many items") ||
      Contains(cause, "TooComplex") || Contains(cause, "max is")) {
    return FailedRule(absl::StatusCode::kResourceExhausted,
                      Text({begin, "it has too many readings", kSimpler}));
  }
  if (Contains(cause, "too") || Contains(cause, "Too")) {
    return FailedRule(absl::StatusCode::kResourceExhausted, Text({begin, cause, kSimpler}));
  }
  return FailedRule(absl::StatusCode::kInternal, Text({begin, cause}));
}

}  // namespace orcd
