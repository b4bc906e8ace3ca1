// The character classes that the pre-tokenizer distinguishes.
#ifndef ORCD_RUNTIME_TEXT_UNICODE_H_
#define ORCD_RUNTIME_TEXT_UNICODE_H_

#include <array>
#include <cstdint>

#include "runtime/base/utf8.h"

namespace orcd {

enum class CharClass : uint8_t {
  // Anything else: marks, punctuation, symbols.
  kOther,
  // General category L.
  kLetter,
  // General category N.
  kNumber,
  // Property White_Space.
  kSpace,
};

// Indexed by ASCII codepoint.
inline constexpr std::array<CharClass, 0x80> kAsciiClasses = [] {
  std::array<CharClass, 0x80> classes = {};
  for (int c = '0'; c <= '9'; ++c) classes[c] = CharClass::kNumber;
  for (int c = 'a'; c <= 'z'; ++c) classes[c] = CharClass::kLetter;
  for (int c = 'A'; c <= 'Z'; ++c) classes[c] = CharClass::kLetter;
  for (int c = '\t'; c <= '\r'; ++c) classes[c] = CharClass::kSpace;
  classes[' '] = CharClass::kSpace;
  return classes;
}();

CharClass ClassOf(char32_t codepoint);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_UNICODE_H_
