// Encodes a request's output as the one answer of ModelInfer.
#ifndef ORCD_WORKER_API_KSERVE_INFER_ENCODER_H_
#define ORCD_WORKER_API_KSERVE_INFER_ENCODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/api/kserve/infer_translation.h"
#include "worker/stream/response_encoder.h"

namespace orcd::kserve {

// Keeps the output until the end.
class InferEncoder final : public ResponseEncoder {
 public:
  // `preface` precedes the generated text.
  InferEncoder(std::shared_ptr<const InferForm> form, std::string preface)
      : form_(std::move(form)), text_(std::move(preface)) {}

  std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent&) override { return std::nullopt; }
  std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) override;
  // Fails if the answer is larger than clients accept.
  End OnFinished(const FinishedEvent& event, const absl::Status& status) override;
  bool is_at_once() const override { return true; }

 private:
  const std::shared_ptr<const InferForm> form_;
  std::string text_;
  std::vector<int32_t> token_ids_;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_INFER_ENCODER_H_
