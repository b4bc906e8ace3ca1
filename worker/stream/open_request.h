// Opens a call with one request: checks that its caller may make it, and parses the request.
#ifndef ORCD_WORKER_STREAM_OPEN_REQUEST_H_
#define ORCD_WORKER_STREAM_OPEN_REQUEST_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "runtime/base/error.h"
#include "worker/base/messages.h"
#include "worker/security/authorizer.h"

namespace orcd {

// Returns the request. Fails with the errors of Authorize, then those of ParseRequest.
template <typename Request>
absl::StatusOr<Request> OpenRequest(const Authorizer* authorizer,
                                    const grpc::ServerContextBase& context, Permission permission,
                                    const grpc::ByteBuffer& bytes) {
  ORCD_RETURN_IF_ERROR(Authorize(authorizer, context, permission));
  return ParseRequest<Request>(bytes);
}

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_OPEN_REQUEST_H_
