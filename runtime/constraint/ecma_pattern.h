// Patterns of ECMA-262, which JSON Schema uses, for the constraint library.
#ifndef ORCD_RUNTIME_CONSTRAINT_ECMA_PATTERN_H_
#define ORCD_RUNTIME_CONSTRAINT_ECMA_PATTERN_H_

#include <string>
#include <string_view>

namespace orcd {

// Readings of a pattern where ECMA-262 and common validators differ, as for `.`, \d, \w and \s.
enum class EcmaReading {
  // Matches only what all of them match: for texts that must match.
  kSmallest,
  // Matches whatever any of them matches: for names that must be known to match nothing else.
  kLargest,
};

struct EcmaPattern {
  // The pattern in the syntax of Rust's crate regex, which the library reads.
  std::string text = {};
  // The reason for which the pattern cannot be enforced; empty if it can.
  std::string fault = {};
  // True if it is no pattern of ECMA-262 at all.
  bool is_invalid = false;
};

// Reads a pattern of UTF-8, with the meaning that it has with the flag `u`, in linear time. What
// the two syntaxes spell differently is translated, with `reading`. Faults are look-around, word
// boundaries, back references, flags, and what is read in ways too different for that, such as
// `[]`. What validators without the flag read in one way, such as a lone brace, is read so. The
// library checks the rest, such as the order of ranges and the names of properties.
EcmaPattern ReadEcmaPattern(std::string_view pattern, EcmaReading reading = EcmaReading::kSmallest);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_ECMA_PATTERN_H_
