#include "integration_tests/token_repetition.h"

#include <unordered_set>

namespace orcd::testing {

RepeatedRun LongestRepeatedRun(std::span<const uint32_t> tokens, size_t max_period) {
  RepeatedRun longest;
  for (size_t period = 1; period <= max_period && 2 * period <= tokens.size(); ++period) {
    size_t matches = 0;
    for (size_t i = period; i < tokens.size(); ++i) {
      matches = tokens[i] == tokens[i - period] ? matches + 1 : 0;
      const size_t length = matches + period;
      if (length >= 2 * period && length > longest.length) {
        longest = {.begin = i + 1 - length, .length = length, .period = period};
      }
    }
  }
  return longest;
}

double DistinctShare(std::span<const uint32_t> tokens) {
  if (tokens.empty()) return 1;
  const std::unordered_set<uint32_t> distinct(tokens.begin(), tokens.end());
  return static_cast<double>(distinct.size()) / static_cast<double>(tokens.size());
}

}  // namespace orcd::testing
