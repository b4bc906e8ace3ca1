// Measures how long steps take, by their number of tokens.
#ifndef ORCD_RUNTIME_ENGINE_STEP_COSTS_H_
#define ORCD_RUNTIME_ENGINE_STEP_COSTS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace orcd {

// Moving averages for each number of tokens, above 511 for each 256th part of an octave. One
// thread.
class StepCosts {
 public:
  // A step of `tokens`, at least one, took `seconds`; nothing is recorded if that is not positive.
  void Add(int tokens, double seconds);

  // Expected duration of a step of `tokens`, in seconds: measured, or linear between the nearest
  // two that were; beyond the largest with the mean slope of all, and with one measurement alone
  // half of a token's share of it for each more. Never less than for fewer tokens: numbers of
  // tokens that took less than fewer ones share a mean with them, in which each counts as often as
  // it was measured lately. Unknown before the first measurement.
  std::optional<double> Seconds(int tokens) const;

 private:
  struct Point {
    int tokens;
    // The mean of `count` steps.
    double mean;
    int count = 0;
    // Value of added_ after the last one of them.
    int64_t last = 0;
    // The expected duration.
    double seconds = 0;
  };
  // Consecutive points that share a mean.
  struct Pooled {
    double mean;
    double weight;
    int points;
  };

  // Sets all points' seconds.
  void Pool();

  // Ascending.
  std::vector<Point> points_;
  // Steps recorded.
  int64_t added_ = 0;
  // Scratch of Pool.
  std::vector<Pooled> pools_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_STEP_COSTS_H_
