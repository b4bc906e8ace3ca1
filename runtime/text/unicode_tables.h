// Table of the codepoints that are letters or numbers.
#ifndef ORCD_RUNTIME_TEXT_UNICODE_TABLES_H_
#define ORCD_RUNTIME_TEXT_UNICODE_TABLES_H_

#include <span>

#include "runtime/text/unicode.h"

namespace orcd {

// The range from `first` to `last`, both included.
struct CodepointRange {
  char32_t first;
  char32_t last;
  CharClass char_class;
};

// Every range of general category L (letters) and N (numbers) from U+0080 up, ascending and
// disjoint.
std::span<const CodepointRange> LettersAndNumbers();

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_UNICODE_TABLES_H_
