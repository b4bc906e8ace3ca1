// Encodes the events of a request as the messages of this protocol's Generate.
#ifndef ORCD_WORKER_API_VLLM_VLLM_ENCODER_H_
#define ORCD_WORKER_API_VLLM_VLLM_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/api/vllm/wire.h"
#include "worker/stream/response_encoder.h"

namespace orcd {

// Owns the output that is not sent yet, which is all of it for a request that does not stream.
// Sends nothing before the first token, because a gateway cancels the call if its client leaves
// before then.
class VllmEncoder final : public ResponseEncoder {
 public:
  struct Request {
    bool stream = false;
    // True if log-probabilities of the prompt were asked for. first_prompt_token is the prompt's
    // first token, which has none.
    bool prompt_logprobs = false;
    int32_t first_prompt_token = 0;
  };

  explicit VllmEncoder(const Request& request);

  std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent& event) override;
  std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) override;
  // An aborted request ends well. Each of its samples that had not ended gets the reason `abort`.
  End OnFinished(const FinishedEvent& event, const absl::Status& status) override;
  size_t held_bytes() const override { return held_bytes_; }

 private:
  // Appends the end of a sample to `end`. The end of a single sample is that of the FinishedEvent.
  void AppendEnd(int32_t sample, const SampleEnd& sample_end, End& end);
  vllm_wire::GenerateResponse MakeChunk(int32_t sample);
  vllm_wire::GenerateComplete& CompleteOf(int32_t sample);

  const Request request_;
  int32_t prompt_tokens_ = 0;
  int32_t cached_tokens_ = 0;
  // Log-probabilities of the whole prompt, kept until they are sent.
  std::optional<vllm_wire::InputLogProbs> input_logprobs_;
  // By sample, as far as samples have appeared. They collect the tokens if the request does not
  // stream.
  std::vector<vllm_wire::GenerateComplete> completes_;
  size_t held_bytes_ = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_VLLM_ENCODER_H_
