// Ends a process that gets no more memory or threads.
#ifndef ORCD_WORKER_HOST_EXHAUSTION_H_
#define ORCD_WORKER_HOST_EXHAUSTION_H_

namespace orcd {

// Makes an abort caused by a system limit end the process with ExitCode::kNoResources and a line on
// stderr that names the limits, in place of SIGABRT. Two kinds of abort count: an uncaught
// exception of the standard library (std::bad_alloc, or std::system_error of a thread that could
// not be started), and a library's abort, such as gRPC's when it gets no thread, at a moment when
// the system starts no thread or maps no stack. Every other abort continues to SIGABRT's default
// action. Process-wide; must be called once, before any thread is started.
void ExitOnExhaustion();

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_EXHAUSTION_H_
