// Strings in JSON Schemas: names of formats, parts of JSON pointers, escapes.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_STRINGS_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_STRINGS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace orcd {

enum class FormatSupport {
  kByLibrary,
  // The library's own expression accepts what is none, such as the date 2023-02-29.
  kByPattern,
  // The specification does not know the name, so that it annotates.
  kAnnotation,
  kUnsupported,
};
FormatSupport FormatSupportOf(std::string_view format);

// An expression that matches only texts of a format of kByPattern. Dates and times: all of RFC 3339
// but the year 0 and leap seconds, which not all validators accept. Names of hosts: all but those
// with two hyphens in the third and fourth place of a label, such as those that encode Unicode.
std::string PatternOfFormat(std::string_view format);
// Characters that a text of the format may have; 0 if the pattern says it all.
size_t MaxLengthOfFormat(std::string_view format);

// A token of a JSON pointer in a URI's fragment, decoded (RFC 6901, section 6); empty if an escape
// is malformed.
std::optional<std::string> DecodePointerToken(std::string_view token);

// True if JSON can write the text, or the library does, only with an escape `\u`: it has a control
// character without a short escape.
bool NeedsUnicodeEscape(std::string_view text);

// The index of a list that a decoded token is; empty if it is none.
std::optional<size_t> ListIndex(std::string_view token);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_STRINGS_H_
