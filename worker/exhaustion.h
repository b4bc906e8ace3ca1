// The end of a process that is given no more memory or threads.
#ifndef ORCD_WORKER_EXHAUSTION_H_
#define ORCD_WORKER_EXHAUSTION_H_

namespace orcd {

// Makes an abort that follows from a limit of the system end the process with
// ExitCode::kNoResources and a line on stderr that names the limits, in place of SIGABRT: an
// exception of the standard library that nobody caught (std::bad_alloc, or std::system_error of a
// thread that could not be started), and an abort of a library, such as gRPC's where it has no
// thread, at a moment when the system starts no thread or maps no stack. Every other abort goes on
// to SIGABRT's default action. Process-wide; to be called once, before any thread is started.
void ExitWhereResourcesEnd();

}  // namespace orcd

#endif  // ORCD_WORKER_EXHAUSTION_H_
