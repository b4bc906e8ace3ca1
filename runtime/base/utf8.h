// UTF-8: decoding of characters, and replacement of bytes that belong to none.
#ifndef ORCD_RUNTIME_BASE_UTF8_H_
#define ORCD_RUNTIME_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace orcd {

inline constexpr char32_t kReplacementCodepoint = 0xFFFD;
// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct Utf8Char {
  char32_t codepoint;
  // Bytes it takes, 1 to 4.
  int length;
  // False: the byte begins no character; it stands alone, as U+FFFD.
  bool valid;
};

// The character at text[pos]; pos < text.size(). Overlong forms, surrogates and values past
// U+10FFFF are not valid. Source: The Unicode Standard, table 3-7.
Utf8Char DecodeUtf8(std::string_view text, size_t pos);

// For a nonempty `text` that does not begin with a whole character: the number of its first bytes
// that are the start of a character that is cut off (the "maximal subpart" of The Unicode Standard,
// chapter 3.9); 1 if the first byte begins none.
size_t TruncatedPrefixLength(std::string_view text);

// True if `text` is the start of a character: at least one byte, and not all of it.
bool IsTruncatedUtf8Char(std::string_view text);

// Position of the first byte that begins no character and belongs to none; text.size() if there is
// none.
size_t FindInvalidUtf8(std::string_view text);

// `text` with each byte that belongs to no character replaced by U+FFFD. Text from outside (a
// file's metadata, a file's name, an error text) goes through it before it enters a message, a
// header, a log line or a metric's label: a proto3 client cannot decode a message with any other
// string.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace orcd

#endif  // ORCD_RUNTIME_BASE_UTF8_H_
