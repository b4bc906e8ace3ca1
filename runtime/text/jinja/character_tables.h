// Tables of Python's character properties and cases.
#ifndef ORCD_RUNTIME_TEXT_JINJA_CHARACTER_TABLES_H_
#define ORCD_RUNTIME_TEXT_JINJA_CHARACTER_TABLES_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace orcd::jinja {

// From `first` to `last`, both included.
struct CharacterRange {
  char32_t first;
  char32_t last;
};

// Every `step`-th character from `first` to `last` becomes the one `delta` after it; or, if `text`
// is not empty, that text.
struct CaseRun {
  char32_t first;
  char32_t last;
  uint32_t step;
  int32_t delta;
  std::string_view text;
};

// All ascending and disjoint. The first five are those of str.isalpha(), isdecimal(), isdigit(),
// isnumeric() and not isprintable().
extern const std::span<const CharacterRange> kAlphabetic;
extern const std::span<const CharacterRange> kDecimal;
extern const std::span<const CharacterRange> kDigit;
extern const std::span<const CharacterRange> kNumeric;
extern const std::span<const CharacterRange> kNotPrintable;
extern const std::span<const CharacterRange> kLower;
extern const std::span<const CharacterRange> kUpper;
// Upper, lower or title case.
extern const std::span<const CharacterRange> kCased;
// Characters that the rule of a final sigma looks past (The Unicode Standard, table 3-17).
extern const std::span<const CharacterRange> kCaseIgnorable;

// Ascending and disjoint, too.
extern const std::span<const CaseRun> kUppercase;
extern const std::span<const CaseRun> kLowercase;
extern const std::span<const CaseRun> kTitlecase;

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_CHARACTER_TABLES_H_
