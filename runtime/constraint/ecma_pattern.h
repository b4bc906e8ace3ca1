// Patterns of ECMA-262, which JSON Schema uses, for the constraint library.
#ifndef ORCD_RUNTIME_CONSTRAINT_ECMA_PATTERN_H_
#define ORCD_RUNTIME_CONSTRAINT_ECMA_PATTERN_H_

#include <string>
#include <string_view>

namespace orcd {

struct EcmaPattern {
  // The pattern in the syntax of Rust's crate regex, which the library reads.
  std::string text = {};
  // The reason for which the pattern cannot be enforced; empty if it can.
  std::string fault = {};
  // True if it is no pattern of ECMA-262 at all.
  bool is_invalid = false;
};

// Reads a pattern of UTF-8, with the meaning that it has with the flag `u`, in linear time. What
// the two syntaxes spell differently is translated. Where ECMA-262 and common validators differ,
// the result matches what both do, as for `.`, \d, \w and \s, or the pattern has a fault. Faults
// too: look-around, word boundaries, back references, flags. The library checks the rest, such as
// the order of ranges and the names of properties.
EcmaPattern ReadEcmaPattern(std::string_view pattern);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_ECMA_PATTERN_H_
