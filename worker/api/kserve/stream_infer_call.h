// The messages of ModelStreamInfer, which is Triton's call for many requests.
#ifndef ORCD_WORKER_API_KSERVE_STREAM_INFER_CALL_H_
#define ORCD_WORKER_API_KSERVE_STREAM_INFER_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/api/orcd/multiplexed_call.h"

namespace orcd::kserve {

// Has no state. Any thread may call.
class StreamInferDialect final : public CallDialect {
 public:
  // Bytes that are not a message end the call, because they name no request.
  absl::StatusOr<MultiplexedAction> Parse(const grpc::ByteBuffer& bytes) const override;
  // Clients of KServe choose ids that need not be unique, and cannot cancel by them.
  std::span<const int> id_path() const override { return {}; }
  // Makes one message for each request with pending events, and a second one at the end of some.
  std::vector<grpc::ByteBuffer> Serialize(std::span<const PendingEvents> pending,
                                          std::span<const CancelAnswer> answers) const override;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_STREAM_INFER_CALL_H_
