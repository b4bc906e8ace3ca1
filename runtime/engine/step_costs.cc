#include "runtime/engine/step_costs.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace orcd {
namespace {

constexpr double kStepWeight = 1.0 / 16;
// In a shared mean a measurement weighs half as much after so many others, of whatever numbers of
// tokens: steps take longer or less as contexts grow and other requests come.
constexpr int kHalfLife = 16;
// Numbers of tokens keep this many leading bits, so that in a batch of some hundred sequences one
// more token still makes a difference.
constexpr int kBits = 9;

int Rounded(int tokens) {
  const int more = std::bit_width(static_cast<unsigned>(tokens)) - kBits;
  return more > 0 ? tokens >> more << more : tokens;
}

}  // namespace

void StepCosts::Add(int tokens, double seconds) {
  if (tokens <= 0 || seconds <= 0) return;
  const int rounded = Rounded(tokens);
  auto place = std::lower_bound(points_.begin(), points_.end(), rounded,
                                [](const Point& point, int size) { return point.tokens < size; });
  if (place == points_.end() || place->tokens != rounded) {
    place = points_.insert(place, Point{.tokens = rounded, .mean = seconds});
  }
  // Steps are delayed by others and never hurried: one that took less than half shows that those
  // before it were delayed, as the first of its size may be that sets things up.
  if (seconds < place->mean / 2) {
    place->mean = seconds;
    place->count = 0;
  }
  ++place->count;
  place->last = ++added_;
  const double sample = std::min(seconds, 2 * place->mean);
  place->mean += (sample - place->mean) * std::max(kStepWeight, 1.0 / place->count);
  Pool();
}

// Isotonic regression by pooling adjacent violators.
void StepCosts::Pool() {
  size_t pools = 0;
  for (const Point& point : points_) {
    const auto half_lives =
        static_cast<int>(std::min<int64_t>((added_ - point.last) / kHalfLife, 63));
    const double steps = std::min<double>(point.count, 1 / kStepWeight);
    Pooled pool = {.mean = point.mean,
                   .weight = steps / static_cast<double>(uint64_t{1} << half_lives),
                   .points = 1};
    for (; pools > 0 && pools_[pools - 1].mean > pool.mean; --pools) {
      const Pooled& before = pools_[pools - 1];
      const double weight = before.weight + pool.weight;
      pool.mean = (before.mean * before.weight + pool.mean * pool.weight) / weight;
      pool.weight = weight;
      pool.points += before.points;
    }
    if (pools == pools_.size()) pools_.emplace_back();
    pools_[pools++] = pool;
  }
  auto point = points_.begin();
  for (size_t i = 0; i < pools; ++i) {
    for (int j = 0; j < pools_[i].points; ++j) (point++)->seconds = pools_[i].mean;
  }
}

std::optional<double> StepCosts::Seconds(int tokens) const {
  if (points_.empty()) return std::nullopt;
  const auto above =
      std::lower_bound(points_.begin(), points_.end(), tokens,
                       [](const Point& point, int size) { return point.tokens < size; });
  const Point& first = points_.front();
  if (above == points_.begin()) return first.seconds;
  const Point& below = *std::prev(above);
  double slope = first.seconds / (2 * first.tokens);
  if (above != points_.end()) {
    slope = (above->seconds - below.seconds) / (above->tokens - below.tokens);
  } else if (points_.size() > 1) {
    slope = (below.seconds - first.seconds) / (below.tokens - first.tokens);
  }
  return below.seconds + slope * (tokens - below.tokens);
}

}  // namespace orcd
