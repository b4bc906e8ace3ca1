// The messages of GenerateMany, which carries many orcd.v1 requests over one call.
#ifndef ORCD_WORKER_API_ORCD_GENERATE_MANY_CALL_H_
#define ORCD_WORKER_API_ORCD_GENERATE_MANY_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/api/orcd/multiplexed_call.h"
#include "worker/api/orcd/request_translation.h"

namespace orcd {

// Immutable. Any thread may call.
class GenerateManyDialect final : public CallDialect {
 public:
  explicit GenerateManyDialect(const TranslationOptions& options = {}) : options_(options) {}

  absl::StatusOr<MultiplexedAction> Parse(const grpc::ByteBuffer& bytes) const override;
  std::span<const int> id_path() const override;
  // Returns exactly one message.
  std::vector<grpc::ByteBuffer> Serialize(std::span<const PendingEvents> pending,
                                          std::span<const CancelAnswer> answers) const override;

 private:
  const TranslationOptions options_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_GENERATE_MANY_CALL_H_
