// Ends a call with one reply.
#ifndef ORCD_WORKER_STREAM_UNARY_REPLY_H_
#define ORCD_WORKER_STREAM_UNARY_REPLY_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"

namespace orcd {

inline void Fail(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
                 const absl::Status& status) {
  reactor->Finish(ToGrpcStatus(status, context));
}

// A message that is larger than clients accept is refused; see CheckReplySize.
inline void Reply(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
                  grpc::ByteBuffer* response, const google::protobuf::Message& message) {
  if (absl::Status fits = CheckReplySize(message.ByteSizeLong()); !fits.ok()) {
    return Fail(context, reactor, fits);
  }
  *response = SerializeReply(message);
  reactor->Finish(grpc::Status::OK);
}

// Ends the call with the message or with the error.
template <typename Message>
void Reply(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
           grpc::ByteBuffer* response, const absl::StatusOr<Message>& message) {
  if (!message.ok()) return Fail(context, reactor, message.status());
  Reply(context, reactor, response, *message);
}

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_UNARY_REPLY_H_
