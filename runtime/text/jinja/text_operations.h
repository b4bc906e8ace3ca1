// Operations on texts that methods and filters share. Each byte keeps its origin.
#ifndef ORCD_RUNTIME_TEXT_JINJA_TEXT_OPERATIONS_H_
#define ORCD_RUNTIME_TEXT_JINJA_TEXT_OPERATIONS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

// `text`, which is Markup if `source` is.
Text WithMarkupOf(const Text& source, Text text);

// Without the characters of `characters`, or without white space if it is null, at the beginning
// and at the end.
Text Strip(const Text& text, const Text* characters, bool at_begin, bool at_end);

// str.strip() with the optional set of characters `arguments[0]`.
absl::StatusOr<Value> StripCharacters(Runtime& runtime, const Text& text, const Bound& arguments,
                                      bool at_begin, bool at_end);

// str.upper() and str.lower(); Markup stays Markup.
absl::StatusOr<Value> ChangeCase(Runtime& runtime, const Text& text, Case to);

// With `before` replaced, `count` times at most, or always if it is negative.
absl::StatusOr<Text> Replace(Runtime& runtime, const Text& text, const Text& before,
                             const Text& after, int64_t count);

// The lines of `text`, as str.splitlines() has them.
absl::StatusOr<std::span<const Text>> SplitLines(Runtime& runtime, const Text& text,
                                                 bool keep_breaks);

// At least `width` characters: `left` of 0, 1 and 2 puts none, half and all of the filling after
// the text.
absl::StatusOr<Text> Justify(Runtime& runtime, const Text& text, int64_t width,
                             std::string_view fill, int left);

// The first character in title case, the others in lower case.
Text Capitalize(Runtime& runtime, const Text& text);

// `items` with `separator` between them; Markup among them escapes the others if `escapes`.
absl::StatusOr<Text> Join(Runtime& runtime, const Text& separator, std::span<const Text> items,
                          bool escapes);

// The text of `value`, which is not yet Markup, escaped for HTML.
absl::StatusOr<Text> Escape(Runtime& runtime, const Value& value);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_TEXT_OPERATIONS_H_
