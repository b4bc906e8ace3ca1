// Numbers with units, in the form that flags take.
#ifndef ORCD_WORKER_CONFIG_QUANTITY_H_
#define ORCD_WORKER_CONFIG_QUANTITY_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace orcd {

// Parses a number of bytes and, optionally, its unit: Ki, Mi, Gi, Ti, Pi, Ei are powers of 1024, K,
// M, G, T, P, E powers of 1000, each also with a B after it and in any case; B is a byte. So 2Gi,
// 2GiB, 2048Mi and 2147483648 are the same, and 2G, 2GB and 2e9 are. A lower-case m alone is
// refused because Kubernetes reads it as a thousandth. Blanks around the number and its unit do not
// count; fractions of a byte are cut off. Fails with kInvalidArgument and the reason: no number, an
// unknown unit, negative, 2^63 or more, more than 0 and less than a byte.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Parses a share, a number from 0 to 1. Fails with kInvalidArgument for everything else, NaN too.
absl::StatusOr<double> ParseShare(std::string_view text);

}  // namespace orcd

#endif  // ORCD_WORKER_CONFIG_QUANTITY_H_
