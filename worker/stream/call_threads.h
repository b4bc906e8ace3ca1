// Threads that serve calls beside gRPC's threads and the engine thread.
#ifndef ORCD_WORKER_STREAM_CALL_THREADS_H_
#define ORCD_WORKER_STREAM_CALL_THREADS_H_

#include "worker/stream/unread_requests.h"
#include "worker/stream/work_pool.h"
#include "worker/stream/write_queue.h"

namespace orcd {

struct CallThreadsOptions {
  int write_threads = 1;
  // Threads of the pool that parses requests, renders templates and encodes prompts.
  int work_threads = 1;
};

// Runs every slow operation of a call: the engine thread writes, logs and counts nothing, and
// gRPC's threads neither tokenise nor wait for a disk.
struct CallThreads {
  explicit CallThreads(const CallThreadsOptions& options)
      : writes(options.write_threads), work({.threads = options.work_threads}) {}

  // Destroyed last: work items may leave something to be written.
  WriteQueue writes;
  // For calls that access files, which hang when a network file system does.
  WorkPool disk{{.threads = 2, .max_waiting = 64}};
  // Requests that wait for `work`.
  UnreadRequests unread;
  WorkPool work;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_CALL_THREADS_H_
