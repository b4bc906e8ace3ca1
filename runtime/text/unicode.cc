#include "runtime/text/unicode.h"

#include <algorithm>
#include <array>
#include <span>

#include "runtime/text/unicode_tables.h"

namespace orcd {
namespace {

bool IsWhiteSpace(char32_t codepoint) {
  switch (codepoint) {
    case ' ':
    case '\t':
    case '\n':
    case 0x0B:
    case 0x0C:
    case '\r':
    case 0x0085:
    case 0x00A0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return codepoint >= 0x2000 && codepoint <= 0x200A;
  }
}

}  // namespace

CharClass ClassOf(char32_t codepoint) {
  if (IsWhiteSpace(codepoint)) return CharClass::kSpace;
  if (codepoint < 0x80) {
    if (codepoint >= '0' && codepoint <= '9') return CharClass::kNumber;
    const char32_t lower = codepoint | 0x20;
    return lower >= 'a' && lower <= 'z' ? CharClass::kLetter : CharClass::kOther;
  }
  const std::span<const CodepointRange> ranges = LettersAndNumbers();
  const auto range = std::ranges::lower_bound(ranges, codepoint, {}, &CodepointRange::last);
  if (range == ranges.end() || codepoint < range->first) return CharClass::kOther;
  return range->char_class;
}

}  // namespace orcd
