// The character classes that the pre-tokenizer distinguishes.
#ifndef ORCD_RUNTIME_TEXT_UNICODE_H_
#define ORCD_RUNTIME_TEXT_UNICODE_H_

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

CharClass ClassOf(char32_t codepoint);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_UNICODE_H_
