// How a call with one request begins: may its caller make it, and is it one?
#ifndef ORCD_WORKER_OPEN_REQUEST_H_
#define ORCD_WORKER_OPEN_REQUEST_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "runtime/error.h"
#include "worker/authorizer.h"
#include "worker/messages.h"

namespace orcd {

// The request; errors as Authorize and ParseRequest have them, in this order.
template <typename Request>
absl::StatusOr<Request> OpenRequest(const Authorizer* authorizer,
                                    const grpc::ServerContextBase& context, Permission permission,
                                    const grpc::ByteBuffer& bytes) {
  ORCD_RETURN_IF_ERROR(Authorize(authorizer, context, permission));
  return ParseRequest<Request>(bytes);
}

}  // namespace orcd

#endif  // ORCD_WORKER_OPEN_REQUEST_H_
