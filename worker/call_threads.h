// The threads that calls have beside gRPC's and the engine's.
#ifndef ORCD_WORKER_CALL_THREADS_H_
#define ORCD_WORKER_CALL_THREADS_H_

#include "worker/unread_requests.h"
#include "worker/work_pool.h"
#include "worker/write_queue.h"

namespace orcd {

struct CallThreadsOptions {
  int write_threads = 1;
  // Threads of the pool that parses requests, renders templates and encodes prompts.
  int work_threads = 1;
};

// Everything that takes long is done here: the engine's thread writes, logs and counts nothing, and
// gRPC's threads neither tokenise nor wait for a disk.
struct CallThreads {
  explicit CallThreads(const CallThreadsOptions& options)
      : writes(options.write_threads), work({.threads = options.work_threads}) {}

  // Destroyed last: the work may leave something to be written.
  WriteQueue writes;
  // For calls that look at files: they hang when a network's file system does.
  WorkPool disk{{.threads = 2, .max_waiting = 64}};
  // Those that wait for `work`.
  UnreadRequests unread;
  WorkPool work;
};

}  // namespace orcd

#endif  // ORCD_WORKER_CALL_THREADS_H_
