#include "runtime/constraint/schema_numbers.h"

#include <cmath>

namespace orcd {

std::optional<uint64_t> WholeNumberOf(const OrderedJson& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number < 0 || number > 1e15 || number != std::floor(number)) return std::nullopt;
  return static_cast<uint64_t>(number);
}

bool HoldsInDouble(const OrderedJson& value) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  constexpr double kTwoTo64 = 2 * kTwoTo63;
  if (value.is_number_unsigned()) {
    const auto rounded = static_cast<double>(value.get<uint64_t>());
    return rounded < kTwoTo64 && static_cast<uint64_t>(rounded) == value.get<uint64_t>();
  }
  if (value.is_number_integer()) {
    const auto rounded = static_cast<double>(value.get<int64_t>());
    return rounded < kTwoTo63 && static_cast<int64_t>(rounded) == value.get<int64_t>();
  }
  return true;
}

uint64_t MultipleDigits(uint64_t thousandths) {
  for (int i = 0; i < 3 && thousandths % 10 == 0; ++i) thousandths /= 10;
  return thousandths;
}

}  // namespace orcd
