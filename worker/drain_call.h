// The Drain call: what a drain leaves, told to a client.
#ifndef ORCD_WORKER_DRAIN_CALL_H_
#define ORCD_WORKER_DRAIN_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "orcd/v1/worker.pb.h"
#include "worker/logging.h"
#include "worker/model_host.h"

namespace orcd {

// Starts the drain, which goes on where the client goes away, and returns the stream that reports
// it. The stream deletes itself. kInvalidArgument for a negative timeout.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDrainCall(grpc::CallbackServerContext* context,
                                                           const v1::DrainRequest& request,
                                                           ModelHost& host, const Logger& log);

}  // namespace orcd

#endif  // ORCD_WORKER_DRAIN_CALL_H_
