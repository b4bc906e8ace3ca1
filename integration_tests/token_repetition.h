// Measures of repetition in a sequence of tokens.
#ifndef ORCD_INTEGRATION_TESTS_TOKEN_REPETITION_H_
#define ORCD_INTEGRATION_TESTS_TOKEN_REPETITION_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace orcd::testing {

// A range of `length` tokens from `begin` on in which an n-gram of `period` tokens repeats without
// a gap: token i equals token i + period throughout, and length is at least twice the period.
struct RepeatedRun {
  size_t begin = 0;
  size_t length = 0;
  size_t period = 0;
};

// The longest repeated run with a period of at most `max_period`. Ties go to the smallest period,
// then to the first run. Length 0 if nothing repeats.
RepeatedRun LongestRepeatedRun(std::span<const uint32_t> tokens, size_t max_period);

// Distinct tokens divided by all tokens; 1 for no tokens.
double DistinctShare(std::span<const uint32_t> tokens);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_TOKEN_REPETITION_H_
