// The time that the engine and the worker measure by.
#ifndef ORCD_RUNTIME_STEADY_TIME_H_
#define ORCD_RUNTIME_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace orcd {

// Now, on a clock that goes on evenly whatever is done to the machine's date: a step of that must
// end no request and no worker. Only such times can be compared with one another. absl::Now() is
// for what others read, such as logs and spans.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_STEADY_TIME_H_
