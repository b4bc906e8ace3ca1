// Bounds the time that a process takes to end.
#ifndef ORCD_WORKER_HOST_END_IN_TIME_H_
#define ORCD_WORKER_HOST_END_IN_TIME_H_

#include "worker/base/exit_codes.h"

namespace orcd {

// If the process still runs after `seconds` (at least 1), ends it with `code` and a line on stderr,
// whatever its threads wait for: a library that got no thread may never stop. Uses SIGALRM.
// Process-wide; must be called once.
void EndInTime(unsigned seconds, ExitCode code);

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_END_IN_TIME_H_
