// The clock that the work of one thread is measured by.
#ifndef ORCD_RUNTIME_BASE_THREAD_TIME_H_
#define ORCD_RUNTIME_BASE_THREAD_TIME_H_

#include <ctime>

#include "absl/time/time.h"

namespace orcd {

// The processor time that this thread has used.
inline absl::Duration ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_BASE_THREAD_TIME_H_
