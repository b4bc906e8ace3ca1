// Splits a template into tokens.
#ifndef ORCD_RUNTIME_TEXT_JINJA_LEXER_H_
#define ORCD_RUNTIME_TEXT_JINJA_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd::jinja {

struct Token {
  enum class Type : uint8_t {
    // Text outside of tags, white space around tags already removed.
    kData,
    // `{{`, `}}`, `{%`, `%}`.
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    // With its quotes.
    kString,
    kInteger,
    kFloat,
    // A sign such as `**`.
    kSign,
    kEnd,
  };
  Type type;
  int line;
  // A part of the source.
  std::string_view text;
};

// The tokens of `source`, whose line breaks are all `\n`; the last is kEnd. They view it.
// kInvalidArgument, `line N: …`, if it is no template. Takes linear time.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_LEXER_H_
