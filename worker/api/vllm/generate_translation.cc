#include "worker/api/vllm/generate_translation.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/sampling/params.h"
#include "worker/base/status_details.h"

namespace orcd {
namespace {

constexpr FieldName kFieldNames[] = {{"sampling", "sampling_params"},
                                     {"stop.strings", "sampling_params.stop"},
                                     {"stop.token_ids", "sampling_params.stop_token_ids"},
                                     {"stop.max_tokens", "sampling_params.max_tokens"},
                                     {"stop.min_tokens", "sampling_params.min_tokens"},
                                     {"samples", "sampling_params.n"},
                                     {"text.text", "text"},
                                     {"tokens.ids", "tokenized.input_ids"},
                                     {"prompt", "input"}};

absl::Status Refused(std::string_view field, const std::string& why) {
  return InvalidField(field, absl::StrCat("is not supported: ", why));
}

absl::Status CheckConstraint(const vllm_wire::SamplingParams& params) {
  using Params = vllm_wire::SamplingParams;
  std::string name;
  switch (params.constraint_case()) {
    case Params::kJsonSchema:
      name = "json_schema";
      break;
    case Params::kRegex:
      name = "regex";
      break;
    case Params::kGrammar:
      name = "grammar";
      break;
    case Params::kStructuralTag:
      name = "structural_tag";
      break;
    case Params::kJsonObject:
      if (!params.json_object()) return absl::OkStatus();
      name = "json_object";
      break;
    case Params::kChoice:
      name = "choice";
      break;
    case Params::CONSTRAINT_NOT_SET:
      return absl::OkStatus();
  }
  return Refused(absl::StrCat("sampling_params.", name),
                 "this worker does not constrain what is generated; leave it out (of a gateway's "
                 "clients: response_format, tool_choice other than auto or none, guided decoding) "
                 "and ask for the form in the prompt");
}

absl::Status CheckSupported(const vllm_wire::GenerateRequest& request) {
  if (request.has_kv_transfer_params() || request.has_kv_transfer_params_json()) {
    return Refused(
        request.has_kv_transfer_params() ? "kv_transfer_params" : "kv_transfer_params_json",
        "this worker does prefill and decode itself; send it whole requests");
  }
  if (request.has_mm_inputs()) {
    return Refused("mm_inputs", "the model takes text alone; leave images, audio and video out");
  }
  if (request.extra_mm_inputs_size() > 0) {
    return Refused("extra_mm_inputs",
                   "the model takes text alone; leave images, audio and video out");
  }
  if (request.has_media_refs()) {
    return Refused("media_refs", "the model takes text alone; leave images, audio and video out");
  }
  if (request.data_parallel_rank() != 0) {
    return InvalidField("data_parallel_rank", absl::StrCat("is ", request.data_parallel_rank(),
                                                           "; there is one rank, 0"));
  }
  const vllm_wire::SamplingParams& params = request.sampling_params();
  if (params.has_truncate_prompt_tokens()) {
    return Refused("sampling_params.truncate_prompt_tokens",
                   "prompts are taken as they are; shorten the prompt and leave it out");
  }
  return CheckConstraint(params);
}

// Checks `logprobs` or `prompt_logprobs`, if set.
absl::Status CheckLogprobs(const std::string& field, std::optional<int32_t> count) {
  if (!count || (*count >= 0 && *count <= kMaxTopLogprobs)) return absl::OkStatus();
  return InvalidField(absl::StrCat("sampling_params.", field),
                      absl::StrCat("is ", *count, ", must be 0 to ", kMaxTopLogprobs));
}

absl::Status TranslateParams(const vllm_wire::SamplingParams& params, v1::GenerateRequest& proto) {
  v1::SamplingParams& sampling = *proto.mutable_sampling();
  sampling.set_temperature_first(true);
  if (params.has_temperature()) sampling.set_temperature(params.temperature());
  if (params.top_p() != 0) sampling.set_top_p(params.top_p());
  sampling.set_top_k(params.top_k());
  sampling.set_min_p(params.min_p());
  sampling.set_frequency_penalty(params.frequency_penalty());
  sampling.set_presence_penalty(params.presence_penalty());
  if (params.repetition_penalty() != 0) {
    sampling.set_repetition_penalty(params.repetition_penalty());
  }
  // A negative seed asks for a random one.
  if (params.has_seed() && params.seed() >= 0) {
    sampling.set_seed(static_cast<uint64_t>(params.seed()));
  }
  for (const auto& [id, bias] : params.logit_bias()) {
    if (id < 0) {
      return InvalidField(absl::StrCat("sampling_params.logit_bias[", id, "]"),
                          "is negative, which no token's id is");
    }
    (*sampling.mutable_logit_bias())[static_cast<uint32_t>(id)] = bias;
  }

  v1::StopConditions& stop = *proto.mutable_stop();
  if (params.has_max_tokens()) stop.set_max_tokens(params.max_tokens());
  stop.set_min_tokens(params.min_tokens());
  *stop.mutable_strings() = params.stop();
  *stop.mutable_token_ids() = params.stop_token_ids();
  stop.set_ignore_eog(params.ignore_eos());

  if (params.n() != 0) proto.set_samples(params.n());
  if (params.has_logprobs()) {
    ORCD_RETURN_IF_ERROR(CheckLogprobs("logprobs", params.logprobs()));
    proto.set_logprobs(static_cast<uint32_t>(params.logprobs()));
  }
  if (params.has_prompt_logprobs()) {
    ORCD_RETURN_IF_ERROR(CheckLogprobs("prompt_logprobs", params.prompt_logprobs()));
    proto.set_prompt_logprobs(static_cast<uint32_t>(params.prompt_logprobs()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> TranslateVllmRequest(vllm_wire::GenerateRequest request) {
  ORCD_RETURN_IF_ERROR(CheckSupported(request));
  v1::GenerateRequest proto;
  proto.set_request_id(request.request_id());
  switch (request.input_case()) {
    case vllm_wire::GenerateRequest::kTokenized:
      *proto.mutable_tokens()->mutable_ids() =
          std::move(*request.mutable_tokenized()->mutable_input_ids());
      break;
    case vllm_wire::GenerateRequest::kText:
      proto.mutable_text()->set_text(std::move(*request.mutable_text()));
      proto.mutable_text()->set_parse_special(true);
      break;
    case vllm_wire::GenerateRequest::INPUT_NOT_SET:
      return InvalidField("input", "is missing; set tokenized or text");
  }
  ORCD_RETURN_IF_ERROR(TranslateParams(request.sampling_params(), proto));
  return proto;
}

absl::Status InVllmWords(const absl::Status& status) {
  if (GetErrorDetails(status).reason == "PROMPT_LOGPROBS_UNSUPPORTED") {
    return InvalidField("sampling_params.prompt_logprobs", std::string(status.message()));
  }
  return RenameField(status, kFieldNames);
}

}  // namespace orcd
