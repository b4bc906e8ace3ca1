#include "worker/api/vllm/vllm_encoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/api/vllm/generate_translation.h"
#include "worker/base/messages.h"

namespace orcd {
namespace {

void AppendTop(vllm_wire::TopLogProbs& top, const SampledToken& token) {
  for (const TokenLogprob& likely : token.top) {
    top.add_values(likely.logprob);
    top.add_token_ids(static_cast<uint32_t>(likely.token));
  }
}

void AppendLogprobs(const SampledToken& token, vllm_wire::OutputLogProbs& logprobs) {
  logprobs.add_token_logprobs(token.logprob);
  logprobs.add_token_ids(static_cast<uint32_t>(token.token));
  AppendTop(*logprobs.add_top_logprobs(), token);
}

// Appends tokens to the token_ids of a chunk or the output_ids of a complete, and to its
// output_logprobs.
template <typename Message>
void AppendTokens(const DeltaEvent& event, google::protobuf::RepeatedField<uint32_t>& ids,
                  Message& message) {
  for (int32_t token : event.tokens) ids.Add(static_cast<uint32_t>(token));
  for (const SampledToken& token : event.logprobs) {
    AppendLogprobs(token, *message.mutable_output_logprobs());
  }
}

size_t LogprobBytes(const std::vector<SampledToken>& tokens) {
  size_t bytes = 0;
  for (const SampledToken& token : tokens) {
    bytes += sizeof(vllm_wire::TopLogProbs) + (1 + token.top.size()) * sizeof(TokenLogprob);
  }
  return bytes;
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEog:
    case FinishReason::kStopString:
    case FinishReason::kStopToken:
      return "stop";
    case FinishReason::kMaxTokens:
    case FinishReason::kContextLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kDrained:
      break;
  }
  return "abort";
}

// The advice in orcd.v1's status refers to fields of orcd.v1, so this error has its own text.
absl::Status Drained(const FinishedEvent& event) {
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("this worker drains and ended the request after ", event.generated_tokens,
                   " tokens; send it again, to another worker that has this model"),
      {.reason = "DRAINED"});
}

}  // namespace

VllmEncoder::VllmEncoder(const Request& request) : request_(request) {
  if (request.prompt_logprobs) {
    input_logprobs_.emplace();
    input_logprobs_->add_token_logprobs();
    input_logprobs_->add_token_ids(static_cast<uint32_t>(request.first_prompt_token));
    input_logprobs_->add_top_logprobs();
  }
}

std::optional<grpc::ByteBuffer> VllmEncoder::OnStarted(const StartedEvent& event) {
  prompt_tokens_ = event.prompt_tokens;
  cached_tokens_ = event.cached_prompt_tokens;
  return std::nullopt;
}

std::optional<grpc::ByteBuffer> VllmEncoder::OnDelta(DeltaEvent event) {
  for (const SampledToken& token : event.prompt_logprobs) {
    input_logprobs_->add_token_logprobs()->set_value(token.logprob);
    input_logprobs_->add_token_ids(static_cast<uint32_t>(token.token));
    AppendTop(*input_logprobs_->add_top_logprobs(), token);
  }
  held_bytes_ += LogprobBytes(event.prompt_logprobs);
  // An event with text alone sends nothing: the client makes its own text from the tokens.
  if (event.tokens.empty()) return std::nullopt;
  if (!request_.stream) {
    held_bytes_ += event.tokens.size() * sizeof(uint32_t) + LogprobBytes(event.logprobs);
    vllm_wire::GenerateComplete& complete = CompleteOf(event.sample);
    AppendTokens(event, *complete.mutable_output_ids(), complete);
    return std::nullopt;
  }
  vllm_wire::GenerateResponse message = MakeChunk(event.sample);
  vllm_wire::GenerateStreamChunk& chunk = *message.mutable_chunk();
  AppendTokens(event, *chunk.mutable_token_ids(), chunk);
  chunk.set_completion_tokens(static_cast<uint32_t>(chunk.token_ids_size()));
  return SerializeMessage(message);
}

ResponseEncoder::End VllmEncoder::OnFinished(const FinishedEvent& event,
                                             const absl::Status& status) {
  const bool aborted = absl::IsCancelled(status) && event.status.ok();
  if (!status.ok() && !aborted) {
    const bool drained = event.status.ok() && event.reason == FinishReason::kDrained;
    return {.status =
                drained && absl::IsUnavailable(status) ? Drained(event) : InVllmWords(status)};
  }
  End end;
  // Gateways sum the ends of samples, and the event counts guesses of all samples together.
  CompleteOf(0).set_spec_draft_tokens(static_cast<uint32_t>(event.draft_tokens));
  CompleteOf(0).set_spec_accepted_tokens(static_cast<uint32_t>(event.accepted_draft_tokens));
  // The request may have been aborted before it was started.
  prompt_tokens_ = event.prompt_tokens;
  cached_tokens_ = event.cached_prompt_tokens;
  if (event.samples.empty()) {
    AppendEnd(0,
              {.reason = event.reason,
               .stop_string = event.stop_string,
               .stop_token = event.stop_token,
               .generated_tokens = event.generated_tokens,
               .stop_logprobs = event.stop_logprobs},
              end);
  }
  for (size_t i = 0; i < event.samples.size(); ++i) {
    AppendEnd(static_cast<int32_t>(i), event.samples[i], end);
  }
  return end;
}

void VllmEncoder::AppendEnd(int32_t sample, const SampleEnd& sample_end, End& end) {
  const bool has_last_token = sample_end.stop_token >= 0;
  const auto last_token = static_cast<uint32_t>(sample_end.stop_token);
  if (request_.stream && has_last_token) {
    vllm_wire::GenerateResponse message = MakeChunk(sample);
    vllm_wire::GenerateStreamChunk& chunk = *message.mutable_chunk();
    chunk.add_token_ids(last_token);
    chunk.set_completion_tokens(1);
    if (sample_end.stop_logprobs) {
      AppendLogprobs(*sample_end.stop_logprobs, *chunk.mutable_output_logprobs());
    }
    end.messages.push_back(SerializeMessage(message));
  }
  vllm_wire::GenerateResponse message;
  vllm_wire::GenerateComplete& complete = *message.mutable_complete();
  complete.Swap(&CompleteOf(sample));
  if (!request_.stream && has_last_token) {
    complete.add_output_ids(last_token);
    if (sample_end.stop_logprobs) {
      AppendLogprobs(*sample_end.stop_logprobs, *complete.mutable_output_logprobs());
    }
  }
  complete.set_finish_reason(FinishReasonName(sample_end.reason));
  complete.set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
  complete.set_completion_tokens(static_cast<uint32_t>(sample_end.generated_tokens));
  complete.set_cached_tokens(static_cast<uint32_t>(cached_tokens_));
  complete.set_index(static_cast<uint32_t>(sample));
  if (input_logprobs_ && sample == 0)
    *complete.mutable_input_logprobs() = *std::move(input_logprobs_);
  if (sample_end.reason == FinishReason::kStopToken) complete.set_matched_token_id(last_token);
  if (sample_end.reason == FinishReason::kStopString) {
    complete.set_matched_stop_str(sample_end.stop_string);
  }
  end.messages.push_back(SerializeMessage(message));
}

vllm_wire::GenerateResponse VllmEncoder::MakeChunk(int32_t sample) {
  vllm_wire::GenerateResponse message;
  vllm_wire::GenerateStreamChunk& chunk = *message.mutable_chunk();
  chunk.set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
  chunk.set_cached_tokens(static_cast<uint32_t>(cached_tokens_));
  chunk.set_index(static_cast<uint32_t>(sample));
  if (input_logprobs_) {
    *chunk.mutable_input_logprobs() = *std::move(input_logprobs_);
    input_logprobs_.reset();
    held_bytes_ = 0;
  }
  return message;
}

vllm_wire::GenerateComplete& VllmEncoder::CompleteOf(int32_t sample) {
  const auto index = static_cast<size_t>(sample);
  if (completes_.size() <= index) completes_.resize(index + 1);
  return completes_[index];
}

}  // namespace orcd
