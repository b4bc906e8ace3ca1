// Numbers in JSON Schemas, as far as the constraint library computes with them exactly.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_NUMBERS_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_NUMBERS_H_

#include <cstdint>
#include <optional>

#include "runtime/constraint/ordered_json.h"

namespace orcd {

// A value that is a whole number of 0 to 10^15, such as 3.0, or any unsigned integer; else empty.
std::optional<uint64_t> WholeNumberOf(const OrderedJson& value);

// False for an integer that the library would round: it computes with doubles.
bool HoldsInDouble(const OrderedJson& value);

// A value of multipleOf, counted in units of 1/1000, without the zeros at its end that are behind
// the decimal point: the number that the library computes with.
uint64_t MultipleDigits(uint64_t thousandths);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_NUMBERS_H_
