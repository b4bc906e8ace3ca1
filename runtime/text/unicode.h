// Sets of characters, by their properties in Unicode.
#ifndef ORCD_RUNTIME_TEXT_UNICODE_H_
#define ORCD_RUNTIME_TEXT_UNICODE_H_

#include <string_view>
#include <vector>

namespace orcd {

// The codepoints from `first` to `last`, both included.
struct CodepointRange {
  char32_t first;
  char32_t last;

  bool operator==(const CodepointRange&) const = default;
};

// The characters of every property of unicode_tables.h whose name begins with `property`: `Lu` are
// capital letters, `L` all letters, `White_Space` is white space. Ascending and disjoint, with a
// gap between each two ranges. The version of Unicode is pinned, because libraries differ in
// theirs.
std::vector<CodepointRange> CodepointsOf(std::string_view property);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_UNICODE_H_
