// The events of a request as this protocol's Generate tells them.
#ifndef ORCD_WORKER_VLLM_VLLM_ENCODER_H_
#define ORCD_WORKER_VLLM_VLLM_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/response_encoder.h"
#include "worker/vllm/wire.h"

namespace orcd {

// Owns what is not sent yet: of a request that does not stream all of its output. Nothing goes out
// before the first token, for a gateway whose client leaves until then cancels the call.
class VllmEncoder final : public ResponseEncoder {
 public:
  struct Request {
    bool stream = false;
    // Whether the prompt's log-probabilities were asked for, and its first token, which has none.
    bool prompt_logprobs = false;
    int32_t first_prompt_token = 0;
  };

  explicit VllmEncoder(const Request& request);

  std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent& event) override;
  std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) override;
  // A request that was aborted ends well, each sample of it that had not ended with `abort`.
  End OnFinished(const FinishedEvent& event, const absl::Status& status) override;
  size_t held_bytes() const override { return held_bytes_; }

 private:
  // How a sample ended, as FinishedEvent and SampleEnd have it.
  void AppendEnd(int32_t sample, const SampleEnd& sample_end, End& end);
  vllm_wire::GenerateResponse MakeChunk(int32_t sample);
  vllm_wire::GenerateComplete& CompleteOf(int32_t sample);

  const Request request_;
  int32_t prompt_tokens_ = 0;
  int32_t cached_tokens_ = 0;
  // Until they are sent; of the whole prompt.
  std::optional<vllm_wire::InputLogProbs> input_logprobs_;
  // By sample, as far as there was one; they get their tokens where the request does not stream.
  std::vector<vllm_wire::GenerateComplete> completes_;
  size_t held_bytes_ = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_VLLM_ENCODER_H_
