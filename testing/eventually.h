// Polls for a state that another thread brings about without announcing it.
#ifndef ORCD_TESTING_EVENTUALLY_H_
#define ORCD_TESTING_EVENTUALLY_H_

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace orcd {

// Returns true if `condition` becomes true within 20 s.
inline bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace orcd

#endif  // ORCD_TESTING_EVENTUALLY_H_
