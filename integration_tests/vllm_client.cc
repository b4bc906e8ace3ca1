#include "integration_tests/vllm_client.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace orcd::testing {
namespace {

void TakeLogprobs(const vllm_wire::OutputLogProbs& logprobs, VllmGeneration::Output& output) {
  output.logprobs.insert(output.logprobs.end(), logprobs.token_logprobs().begin(),
                         logprobs.token_logprobs().end());
  output.logprob_ids.insert(output.logprob_ids.end(), logprobs.token_ids().begin(),
                            logprobs.token_ids().end());
  output.top_logprobs.insert(output.top_logprobs.end(), logprobs.top_logprobs().begin(),
                             logprobs.top_logprobs().end());
}

// Adds one message to the result, and notes the first violation of the protocol.
void Take(const vllm_wire::GenerateResponse& response, bool stream, VllmGeneration& result) {
  const auto violate = [&](const std::string& what) {
    if (result.violation.empty()) result.violation = what;
  };
  switch (response.response_case()) {
    case vllm_wire::GenerateResponse::kChunk: {
      const vllm_wire::GenerateStreamChunk& chunk = response.chunk();
      if (!stream) violate("a chunk that nobody asked for");
      if (chunk.token_ids().empty()) violate("a chunk without tokens");
      if (chunk.completion_tokens() != static_cast<uint32_t>(chunk.token_ids_size())) {
        violate("a chunk that does not count its tokens");
      }
      VllmGeneration::Output& output = result.outputs[chunk.index()];
      if (output.complete) violate("a chunk after the end");
      output.ids.insert(output.ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
      TakeLogprobs(chunk.output_logprobs(), output);
      if (chunk.has_input_logprobs()) {
        if (result.chunks > 0) violate("log-probabilities of the prompt after the first chunk");
        result.input_logprobs = chunk.input_logprobs();
      }
      ++result.chunks;
      break;
    }
    case vllm_wire::GenerateResponse::kComplete: {
      const vllm_wire::GenerateComplete& complete = response.complete();
      VllmGeneration::Output& output = result.outputs[complete.index()];
      if (output.complete) violate("a second end");
      output.complete = std::make_unique<vllm_wire::GenerateComplete>(complete);
      if (stream && complete.output_ids_size() > 0) violate("tokens that came before");
      if (!stream) {
        output.ids.assign(complete.output_ids().begin(), complete.output_ids().end());
        TakeLogprobs(complete.output_logprobs(), output);
        if (complete.has_input_logprobs()) result.input_logprobs = complete.input_logprobs();
      }
      break;
    }
    case vllm_wire::GenerateResponse::RESPONSE_NOT_SET:
      violate("a message without a response");
      break;
  }
}

}  // namespace

::testing::AssertionResult IsComplete(const VllmGeneration& generation, size_t samples) {
  if (!generation.error.ok()) return ::testing::AssertionFailure() << generation.error;
  if (!generation.violation.empty()) return ::testing::AssertionFailure() << generation.violation;
  if (generation.outputs.size() != samples) {
    return ::testing::AssertionFailure() << generation.outputs.size() << " samples came";
  }
  for (const auto& [index, output] : generation.outputs) {
    if (!output.complete) return ::testing::AssertionFailure() << "no end of sample " << index;
    if (output.complete->completion_tokens() != output.ids.size()) {
      return ::testing::AssertionFailure()
             << "sample " << index << " has " << output.ids.size() << " ids and counts "
             << output.complete->completion_tokens();
    }
  }
  return ::testing::AssertionSuccess();
}

VllmCall::VllmCall(vllm_wire::VllmEngine::Stub& stub, const vllm_wire::GenerateRequest& request,
                   absl::Duration timeout)
    : stream_(request.stream()) {
  SetTimeout(context_, timeout);
  reader_ = stub.Generate(&context_, request);
}

VllmCall::~VllmCall() {
  context_.TryCancel();
  Finish();
}

bool VllmCall::Read() {
  vllm_wire::GenerateResponse response;
  if (!reader_->Read(&response)) return false;
  Take(response, stream_, result_);
  return true;
}

bool VllmCall::ReadUntilTokens(size_t count) {
  while (result_.first().ids.size() < count) {
    if (!Read()) return false;
  }
  return true;
}

VllmGeneration& VllmCall::Finish() {
  if (done_) return result_;
  while (Read()) {
  }
  result_.error = DecodeError(reader_->Finish());
  done_ = true;
  return result_;
}

VllmGeneration VllmClient::Generate(const vllm_wire::GenerateRequest& request,
                                    absl::Duration timeout) {
  VllmCall call(*stub_, request, timeout);
  return std::move(call.Finish());
}

RpcError VllmClient::Abort(const std::vector<std::string>& request_ids) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  vllm_wire::AbortRequest request;
  request.mutable_request_ids()->Add(request_ids.begin(), request_ids.end());
  vllm_wire::AbortResponse response;
  return DecodeError(stub_->Abort(&context, request, &response));
}

RpcError VllmClient::HealthCheck() {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  vllm_wire::HealthCheckResponse response;
  RpcError error =
      DecodeError(stub_->HealthCheck(&context, vllm_wire::HealthCheckRequest(), &response));
  // An unhealthy worker answers with an error.
  EXPECT_EQ(error.ok(), response.healthy());
  return error;
}

vllm_wire::SchedulerLoad VllmClient::Load() {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  vllm_wire::GetLoadsResponse response;
  const RpcError error =
      DecodeError(stub_->GetLoads(&context, vllm_wire::GetLoadsRequest(), &response));
  EXPECT_TRUE(error.ok()) << error;
  EXPECT_EQ(response.loads_size(), error.ok() ? 1 : 0);
  return response.loads().empty() ? vllm_wire::SchedulerLoad() : response.loads(0);
}

vllm_wire::GenerateRequest ToVllm(const v1::GenerateRequest& request, bool stream) {
  vllm_wire::GenerateRequest result;
  result.set_request_id(request.request_id());
  result.set_stream(stream);
  *result.mutable_tokenized()->mutable_input_ids() = request.tokens().ids();
  vllm_wire::SamplingParams& params = *result.mutable_sampling_params();
  const v1::SamplingParams& sampling = request.sampling();
  if (sampling.has_temperature()) params.set_temperature(sampling.temperature());
  params.set_top_p(sampling.top_p());
  params.set_top_k(sampling.top_k());
  params.set_min_p(sampling.min_p());
  params.set_repetition_penalty(sampling.repetition_penalty());
  params.set_frequency_penalty(sampling.frequency_penalty());
  params.set_presence_penalty(sampling.presence_penalty());
  for (const auto& [id, bias] : sampling.logit_bias()) {
    (*params.mutable_logit_bias())[static_cast<int32_t>(id)] = bias;
  }
  if (sampling.has_seed()) params.set_seed(static_cast<int32_t>(sampling.seed()));
  const v1::StopConditions& stop = request.stop();
  if (stop.has_max_tokens()) params.set_max_tokens(stop.max_tokens());
  params.set_min_tokens(stop.min_tokens());
  *params.mutable_stop() = stop.strings();
  *params.mutable_stop_token_ids() = stop.token_ids();
  params.set_ignore_eos(stop.ignore_eog());
  params.set_n(request.samples());
  if (request.has_logprobs()) params.set_logprobs(static_cast<int32_t>(request.logprobs()));
  if (request.has_prompt_logprobs()) {
    params.set_prompt_logprobs(static_cast<int32_t>(request.prompt_logprobs()));
  }
  return result;
}

}  // namespace orcd::testing
