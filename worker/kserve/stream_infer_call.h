// The messages of ModelStreamInfer: Triton's many requests over one call.
#ifndef ORCD_WORKER_KSERVE_STREAM_INFER_CALL_H_
#define ORCD_WORKER_KSERVE_STREAM_INFER_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "worker/multiplexed_call.h"

namespace orcd::kserve {

// The fields that lead to the id of a ModelInferRequest.
inline constexpr int kInferIdPath[] = {inference::ModelInferRequest::kIdFieldNumber};

// Without state. Any thread.
class StreamInferDialect final : public CallDialect {
 public:
  // Bytes that are no message end the call: nobody knows whose request they were.
  absl::StatusOr<MultiplexedAction> Parse(const grpc::ByteBuffer& bytes) const override;
  std::span<const int> id_path() const override { return kInferIdPath; }
  // A message for each request that has something to say, and a second one at the end of some.
  std::vector<grpc::ByteBuffer> Serialize(std::span<const RequestNews> news,
                                          std::span<const CancelAnswer> answers) const override;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_KSERVE_STREAM_INFER_CALL_H_
