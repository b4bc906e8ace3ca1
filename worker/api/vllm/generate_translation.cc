#include "worker/api/vllm/generate_translation.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/constraint/structural_tag.h"
#include "runtime/sampling/params.h"
#include "worker/api/orcd/grammar_dialect.h"

namespace orcd {
namespace {

constexpr RequestFields kFields = {.sampling = "sampling_params.",
                                   .stop_strings = "sampling_params.stop",
                                   .stop_ids = "sampling_params.stop_token_ids",
                                   .min_tokens = "sampling_params.min_tokens",
                                   .max_tokens = "sampling_params.max_tokens",
                                   .samples = "sampling_params.n",
                                   .prompt = "input",
                                   .text = "text",
                                   .tokens = "tokenized.input_ids"};

absl::Status Refused(std::string_view field, const std::string& why) {
  return InvalidField(field, absl::StrCat("is not supported: ", why));
}

// Unset if the request has no constraint.
absl::StatusOr<std::optional<ConstraintSpec>> TranslateConstraint(
    vllm_wire::SamplingParams& params) {
  using Wire = vllm_wire::SamplingParams;
  const Wire::ConstraintCase set = params.constraint_case();
  if (set == Wire::CONSTRAINT_NOT_SET || (params.has_json_object() && !params.json_object())) {
    return std::nullopt;
  }
  ConstraintSpec spec;
  spec.field = absl::StrCat("sampling_params.", Wire::descriptor()->FindFieldByNumber(set)->name());
  switch (set) {
    case Wire::kJsonSchema:
      spec.rule = JsonSchemaRule{std::move(*params.mutable_json_schema())};
      break;
    case Wire::kRegex:
      spec.rule = RegexRule{std::move(*params.mutable_regex())};
      break;
    case Wire::kGrammar:
      spec.rule = GrammarOf(std::move(*params.mutable_grammar()));
      break;
    case Wire::kStructuralTag: {
      ORCD_ASSIGN_OR_RETURN(spec.rule, ParseStructuralTag(params.structural_tag(), spec.field));
      break;
    }
    case Wire::kJsonObject:
      spec.rule = JsonObjectRule{};
      break;
    case Wire::kChoice: {
      ChoiceRule rule;
      for (std::string& choice : *params.mutable_choice()->mutable_choices()) {
        rule.choices.push_back(std::move(choice));
      }
      spec.rule = std::move(rule);
      break;
    }
    case Wire::CONSTRAINT_NOT_SET:
      break;
  }
  return spec;
}

absl::Status CheckSupported(const vllm_wire::GenerateRequest& request) {
  if (request.has_kv_transfer_params() || request.has_kv_transfer_params_json()) {
    return Refused(
        request.has_kv_transfer_params() ? "kv_transfer_params" : "kv_transfer_params_json",
        "this worker does prefill and decode itself; send it whole requests");
  }
  for (const auto& [is_set, field] :
       {std::pair(request.has_mm_inputs(), "mm_inputs"),
        std::pair(request.extra_mm_inputs_size() > 0, "extra_mm_inputs"),
        std::pair(request.has_media_refs(), "media_refs")}) {
    if (is_set) {
      return Refused(field, "the model takes text alone; leave images, audio and video out");
    }
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
  return absl::OkStatus();
}

absl::Status CheckLogprobs(const char* field, int32_t count) {
  if (count >= 0 && count <= kMaxTopLogprobs) return absl::OkStatus();
  return InvalidField(absl::StrCat("sampling_params.", field),
                      absl::StrCat("is ", count, ", must be 0 to ", kMaxTopLogprobs));
}

absl::Status TranslateParams(const vllm_wire::SamplingParams& params, RequestBuilder& builder) {
  SamplingParams& sampling = builder.sampling();
  sampling.temperature_first = true;
  if (params.has_temperature()) sampling.temperature = params.temperature();
  if (params.top_p() != 0) sampling.top_p = params.top_p();
  builder.SetTopK(params.top_k());
  sampling.min_p = params.min_p();
  sampling.frequency_penalty = params.frequency_penalty();
  sampling.presence_penalty = params.presence_penalty();
  if (params.repetition_penalty() != 0) sampling.repetition_penalty = params.repetition_penalty();
  // A negative seed asks for a random one.
  if (params.has_seed() && params.seed() >= 0) sampling.seed = static_cast<uint64_t>(params.seed());
  for (const auto& [id, bias] : params.logit_bias()) {
    if (id < 0) {
      return InvalidField(absl::StrCat("sampling_params.logit_bias[", id, "]"),
                          "is negative, which no token's id is");
    }
    builder.SetLogitBias(static_cast<uint32_t>(id), bias);
  }

  StopConditions& stop = builder.stop();
  if (params.has_max_tokens()) builder.SetMaxTokens(params.max_tokens());
  builder.SetMinTokens(params.min_tokens());
  stop.strings.assign(params.stop().begin(), params.stop().end());
  stop.ids = ToIds(params.stop_token_ids());
  stop.ignore_eog = params.ignore_eos();

  if (params.n() != 0) builder.SetSamples(params.n());
  if (params.has_logprobs()) {
    ORCD_RETURN_IF_ERROR(CheckLogprobs("logprobs", params.logprobs()));
    builder.SetLogprobs(static_cast<uint32_t>(params.logprobs()));
  }
  if (params.has_prompt_logprobs()) {
    ORCD_RETURN_IF_ERROR(CheckLogprobs("prompt_logprobs", params.prompt_logprobs()));
    builder.SetPromptLogprobs(static_cast<uint32_t>(params.prompt_logprobs()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RequestBuilder> TranslateVllmRequest(vllm_wire::GenerateRequest request) {
  ORCD_RETURN_IF_ERROR(CheckSupported(request));
  RequestBuilder builder(kFields);
  builder.SetId(request.request_id());
  switch (request.input_case()) {
    case vllm_wire::GenerateRequest::kTokenized:
      builder.SetPrompt(ToIds(request.tokenized().input_ids()));
      break;
    case vllm_wire::GenerateRequest::kText:
      builder.SetPrompt(TextPrompt{std::move(*request.mutable_text()), /*parse_special=*/true});
      break;
    case vllm_wire::GenerateRequest::INPUT_NOT_SET:
      return InvalidField("input", "is missing; set tokenized or text");
  }
  ORCD_RETURN_IF_ERROR(TranslateParams(request.sampling_params(), builder));
  ORCD_ASSIGN_OR_RETURN(std::optional<ConstraintSpec> constraint,
                        TranslateConstraint(*request.mutable_sampling_params()));
  if (constraint) {
    builder.SetConstraint(*std::move(constraint),
                          request.sampling_params().grammar_from_first_token()
                              ? ConstraintStart::kAsGiven
                              : ConstraintStart::kAfterThinking);
  }
  return builder;
}

absl::Status InVllmWords(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  if (details.reason == "PROMPT_LOGPROBS_UNSUPPORTED") {
    return InvalidField("sampling_params.prompt_logprobs", std::string(status.message()));
  }
  if (details.reason == "CONSTRAINTS_NOT_BUILT") {
    return MakeError(absl::StatusCode::kInvalidArgument, std::string(status.message()), details);
  }
  return status;
}

}  // namespace orcd
