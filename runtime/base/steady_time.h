// The clock that the engine and the worker measure time by.
#ifndef ORCD_RUNTIME_BASE_STEADY_TIME_H_
#define ORCD_RUNTIME_BASE_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace orcd {

// Now, on a clock that advances evenly whatever is done to the machine's date, since a change of
// the date must end no request and no worker. These times can be compared only with one another.
// absl::Now() is for times that others read, such as logs and spans.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_BASE_STEADY_TIME_H_
