// Characters as Python's str methods see them.
#ifndef ORCD_RUNTIME_TEXT_JINJA_CHARACTERS_H_
#define ORCD_RUNTIME_TEXT_JINJA_CHARACTERS_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/text/jinja/character_tables.h"
#include "runtime/text/jinja/text_builder.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

// False for surrogates and past U+10FFFF.
bool IsCharacter(char32_t codepoint);
std::string ToUtf8(char32_t character);

// str.isspace() of one character.
bool IsSpace(char32_t character);
bool IsIn(std::span<const CharacterRange> ranges, char32_t character);
// The digit that a character of kDecimal is; -1 for others.
int DecimalDigit(char32_t character);

// In bytes: the position after the white space that `text`, UTF-8, begins with, and the position
// before the white space that it ends with.
size_t BeginWithoutSpace(std::string_view text);
size_t EndWithoutSpace(std::string_view text);

// Number of characters of `text`, which is UTF-8.
size_t CountCharacters(std::string_view text);
// Position in bytes of the character number `index`; text.size() if there are no more than that.
size_t PositionOf(std::string_view text, size_t index);
// Bytes of the character at text[pos], and of the one that ends before `end` > 0.
size_t CharacterLength(std::string_view text, size_t pos);
size_t LastCharacterLength(std::string_view text, size_t end);

// std::string_view::find in linear time, which the standard library does not promise.
size_t FindFirst(std::string_view text, std::string_view part, size_t from = 0);

enum class Case { kUpper, kLower, kTitle };

// Appends the character at text.bytes[pos], of `length` bytes, in another case. `text` is the whole
// text, whose neighbours decide about a final sigma.
void AppendInCase(const Text& text, size_t pos, size_t length, Case to, TextBuilder& out);
// The same for all of `text`: str.upper() and str.lower().
void AppendInCase(const Text& text, Case to, TextBuilder& out);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_CHARACTERS_H_
