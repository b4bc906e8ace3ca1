// The Drain call, which reports the remaining requests to a client.
#ifndef ORCD_WORKER_API_ORCD_DRAIN_CALL_H_
#define ORCD_WORKER_API_ORCD_DRAIN_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"

namespace orcd {

// Returns the request's timeout, or nullopt if it has none. Fails with kInvalidArgument if it is
// negative.
absl::StatusOr<std::optional<absl::Duration>> DrainTimeout(const v1::DrainRequest& request);

// Starts the drain, which continues even if the client goes away, and returns the stream that
// reports it. The stream deletes itself. Ends with kInvalidArgument for a negative timeout.
// `on_exit` is called once the drain is over, if the request asks for the worker's exit.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDrainCall(grpc::CallbackServerContext* context,
                                                           const v1::DrainRequest& request,
                                                           ModelHost& host, const Logger& log,
                                                           std::function<void()> on_exit);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_DRAIN_CALL_H_
