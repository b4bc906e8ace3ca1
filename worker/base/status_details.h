// Converts absl::Status to its form on the wire: a gRPC status with google.rpc details.
#ifndef ORCD_WORKER_BASE_STATUS_DETAILS_H_
#define ORCD_WORKER_BASE_STATUS_DETAILS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace orcd {

// Returns the details of `status`, which is not OK:
//   ErrorInfo (domain `orcd`, the reason; the code's name if the status has none), always;
//   INVALID_ARGUMENT: BadRequest with the field; NOT_FOUND: ResourceInfo with the subject;
//   FAILED_PRECONDITION: PreconditionFailure; RESOURCE_EXHAUSTED: QuotaFailure with the subject;
//   and RetryInfo if the status says when to try again.
// The message is cut to the size that a trailer can carry and made UTF-8.
google::rpc::Status ToRpcStatus(const absl::Status& status);

// Converts `status` for the wire. If it says when to try again, `context` (unless null) also gets
// the trailer `grpc-retry-pushback-ms`, which gRPC clients' retry policies obey:
// https://github.com/grpc/proposal/blob/master/A6-client-retries.md
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_STATUS_DETAILS_H_
