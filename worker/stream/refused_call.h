// Calls that end before they have begun.
#ifndef ORCD_WORKER_STREAM_REFUSED_CALL_H_
#define ORCD_WORKER_STREAM_REFUSED_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <string_view>

#include "absl/status/status.h"
#include "runtime/base/error.h"
#include "worker/base/logging.h"
#include "worker/base/status_details.h"

namespace orcd {

class RefusedStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class RefusedCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RefusedCall(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

inline void LogRefusal(const Logger& log, std::string_view method, const absl::Status& status) {
  log.Info("call refused", {{"method", method},
                            {"code", absl::StatusCodeToString(status.code())},
                            {"reason", GetErrorDetails(status).reason}});
}

// Logs the refusal and returns the reactor of the refused stream.
inline grpc::ServerWriteReactor<grpc::ByteBuffer>* RefuseStream(
    grpc::CallbackServerContext* context, const Logger& log, std::string_view method,
    const absl::Status& status) {
  LogRefusal(log, method, status);
  return new RefusedStream(ToGrpcStatus(status, context));
}

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_REFUSED_CALL_H_
