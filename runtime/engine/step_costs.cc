#include "runtime/engine/step_costs.h"

#include <algorithm>
#include <bit>

namespace orcd {
namespace {

constexpr double kWeight = 1.0 / 16;
// Numbers of tokens keep this many leading bits.
constexpr int kBits = 6;

int Rounded(int tokens) {
  const int more = std::bit_width(static_cast<unsigned>(tokens)) - kBits;
  return more > 0 ? tokens >> more << more : tokens;
}

}  // namespace

void StepCosts::Add(int tokens, double seconds) {
  if (tokens <= 0 || seconds <= 0) return;
  const int rounded = Rounded(tokens);
  const auto place =
      std::lower_bound(points_.begin(), points_.end(), rounded,
                       [](const Point& point, int size) { return point.tokens < size; });
  if (place == points_.end() || place->tokens != rounded) {
    points_.insert(place, Point{.tokens = rounded, .seconds = seconds, .count = 1});
    return;
  }
  Point& point = *place;
  // Steps are delayed by others and never hurried: one that took less than half shows that those
  // before it were delayed, as the first of its size may be that sets things up.
  if (seconds < point.seconds / 2) {
    point.seconds = seconds;
    point.count = 1;
    return;
  }
  ++point.count;
  const double sample = std::min(seconds, 2 * point.seconds);
  point.seconds += (sample - point.seconds) * std::max(kWeight, 1.0 / point.count);
}

std::optional<double> StepCosts::Seconds(int tokens) const {
  if (points_.empty()) return std::nullopt;
  // The point before the one looked at, with the most seconds up to there: chance must not make a
  // token look free.
  int before = 0;
  double least = 0;
  for (const Point& point : points_) {
    const double seconds = std::max(least, point.seconds);
    if (point.tokens >= tokens) {
      if (before == 0) return seconds;
      return least + (seconds - least) * (tokens - before) / (point.tokens - before);
    }
    before = point.tokens;
    least = seconds;
  }
  const Point& first = points_.front();
  const double slope = points_.size() == 1 ? first.seconds / (2 * first.tokens)
                                           : (least - first.seconds) / (before - first.tokens);
  return least + slope * (tokens - before);
}

}  // namespace orcd
