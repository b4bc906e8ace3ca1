#include "runtime/text/unicode.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "runtime/text/unicode_tables.h"

namespace orcd {
namespace {

// For codepoints past ASCII.
bool IsWhiteSpace(char32_t codepoint) {
  constexpr std::u32string_view kSpaces = U"\x85\xA0\x1680\x2028\x2029\x202F\x205F\x3000";
  return (codepoint >= 0x2000 && codepoint <= 0x200A) || kSpaces.find(codepoint) != kSpaces.npos;
}

}  // namespace

CharClass ClassOf(char32_t codepoint) {
  if (codepoint < 0x80) return kAsciiClasses[codepoint];
  const std::span<const CodepointRange> ranges = LettersAndNumbers();
  const auto range = std::ranges::lower_bound(ranges, codepoint, {}, &CodepointRange::last);
  if (range != ranges.end() && codepoint >= range->first) return range->char_class;
  return IsWhiteSpace(codepoint) ? CharClass::kSpace : CharClass::kOther;
}

}  // namespace orcd
