// Table of the characters that have a property in Unicode.
#ifndef ORCD_RUNTIME_TEXT_UNICODE_TABLES_H_
#define ORCD_RUNTIME_TEXT_UNICODE_TABLES_H_

#include <span>
#include <string_view>

#include "runtime/text/unicode.h"

namespace orcd {

struct UnicodeProperty {
  // A general category of two letters, or `White_Space`.
  std::string_view name;
  // Ascending and disjoint, with a gap between each two.
  std::span<const CodepointRange> codepoints;
};

// The general categories of letters, marks, numbers, punctuation and symbols, and White_Space.
std::span<const UnicodeProperty> UnicodeProperties();

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_UNICODE_TABLES_H_
