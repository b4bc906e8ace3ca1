// Encodes a request's events as messages of orcd.v1's Generate.
#ifndef ORCD_WORKER_API_ORCD_GENERATE_ENCODER_H_
#define ORCD_WORKER_API_ORCD_GENERATE_ENCODER_H_

#include <cstdint>
#include <string>

#include "worker/stream/response_encoder.h"

namespace orcd {

class GenerateEncoder final : public ResponseEncoder {
 public:
  GenerateEncoder(std::string id, uint64_t seed, std::string model_digest,
                  std::string numeric_identity);

  std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent& event) override;
  std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) override;
  End OnFinished(const FinishedEvent& event, const absl::Status& status) override;

 private:
  const std::string id_;
  const uint64_t seed_;
  const std::string model_digest_;
  const std::string numeric_identity_;
  // True once a Started was sent: a Finished must then follow.
  bool was_started_ = false;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_GENERATE_ENCODER_H_
