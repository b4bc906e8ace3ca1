#include "runtime/text/unicode.h"

#include <algorithm>

#include "runtime/text/unicode_tables.h"

namespace orcd {

std::vector<CodepointRange> CodepointsOf(std::string_view property) {
  std::vector<CodepointRange> all;
  for (const UnicodeProperty& row : UnicodeProperties()) {
    if (!row.name.starts_with(property)) continue;
    all.insert(all.end(), row.codepoints.begin(), row.codepoints.end());
  }
  std::ranges::sort(all, {}, &CodepointRange::first);
  std::vector<CodepointRange> merged;
  for (const CodepointRange& range : all) {
    if (!merged.empty() && merged.back().last + 1 == range.first) {
      merged.back().last = range.last;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace orcd
