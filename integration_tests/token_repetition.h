// How repetitive a sequence of tokens is.
#ifndef ORCD_INTEGRATION_TESTS_TOKEN_REPETITION_H_
#define ORCD_INTEGRATION_TESTS_TOKEN_REPETITION_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace orcd::testing {

// A stretch of `length` tokens from `begin` on in which an n-gram of `period` tokens immediately
// repeats: token i equals token i + period throughout, and length is at least twice the period.
struct RepeatedRun {
  size_t begin = 0;
  size_t length = 0;
  size_t period = 0;
};

// The longest repeated run with a period of at most `max_period`; of equally long ones that of the
// smallest period, then the first. Length 0 where nothing repeats.
RepeatedRun LongestRepeatedRun(std::span<const uint32_t> tokens, size_t max_period);

// Distinct tokens by all tokens; 1 for none.
double DistinctShare(std::span<const uint32_t> tokens);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_TOKEN_REPETITION_H_
