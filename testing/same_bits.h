// Compares results of tests that must be the same bit for bit.
#ifndef ORCD_TESTING_SAME_BITS_H_
#define ORCD_TESTING_SAME_BITS_H_

#include <cstring>
#include <span>

namespace orcd {

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace orcd

#endif  // ORCD_TESTING_SAME_BITS_H_
