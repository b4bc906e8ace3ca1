// Numbers in JSON Schemas, as far as the constraint library computes with them exactly.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_NUMBERS_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_NUMBERS_H_

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/constraint/ordered_json.h"

namespace orcd {

// A value that is a whole number of 0 to 10^15, such as 3.0, or any unsigned integer; else empty.
std::optional<uint64_t> WholeNumberOf(const OrderedJson& value);

// False for an integer that the library would round: it computes with doubles.
bool HoldsInDouble(const OrderedJson& value);

// True if the library enforces a bound exactly: one that holds in a double, or a maximum beyond 63
// bits, which the library rounds towards 0, to the largest integer that it generates.
bool IsExactBound(const OrderedJson& value, bool is_maximum);

// A value of multipleOf, above 0, in units of 1/1000; empty if the library cannot compute with it
// in little time and memory: if it is above 1,000, or has more than 3 decimals, or is above 10,000
// without its decimal point.
std::optional<uint64_t> MultipleInThousandths(double multiple);

// True if the common multiple of such values is at most 10,000 without its decimal point.
bool HaveSmallCommonMultiple(std::span<const uint64_t> thousandths);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_NUMBERS_H_
