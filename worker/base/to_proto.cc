#include "worker/base/to_proto.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/text/thinking.h"
#include "worker/base/message_text.h"

namespace orcd {
namespace {

// About 10,000 years: https://protobuf.dev/reference/protobuf/google.protobuf/#duration
constexpr absl::Duration kMaxDuration = absl::Seconds(315'576'000'000);
constexpr int32_t kMaxNanos = 999'999'999;

void Fill(v1::TokenLogprobs& logprobs, const SampledToken& token) {
  logprobs.set_token_id(token.token);
  logprobs.set_logprob(token.logprob);
  for (const TokenLogprob& top : token.top) {
    v1::TopLogprob* proto = logprobs.add_top();
    proto->set_token_id(top.token);
    proto->set_logprob(top.logprob);
  }
}

void Fill(v1::SamplingDefaults& defaults, const PartialSampling& params) {
  if (params.temperature) defaults.set_temperature(*params.temperature);
  if (params.top_k) defaults.set_top_k(*params.top_k);
  if (params.top_p) defaults.set_top_p(*params.top_p);
  if (params.min_p) defaults.set_min_p(*params.min_p);
  if (params.repetition_penalty) defaults.set_repetition_penalty(*params.repetition_penalty);
}

// Layers with experts have no width of their own, and those without have no experts.
void FillFeedForward(const ModelSpec& spec, v1::ModelDescription& description) {
  int width = 0;
  ExpertsSpec experts;
  for (const LayerSpec& layer : spec.layers) {
    width = std::max(width, layer.ffn);
    if (layer.experts.count > 0) experts = layer.experts;
  }
  description.set_ffn(width > 0 ? width : experts.ffn);
  description.set_experts(experts.count);
  description.set_experts_used(experts.used);
}

// `Message` is GenerateFinished or SampleFinished.
template <typename Event, typename Message>
void FillEnd(const Event& event, Message& message) {
  message.set_reason(ToProto(event.reason));
  if (event.reason == FinishReason::kStopString) message.set_stop_string(event.stop_string);
  if (event.stop_token >= 0) message.set_token_id(event.stop_token);
  if (event.stop_logprobs) Fill(*message.mutable_matched_logprobs(), *event.stop_logprobs);
}

}  // namespace

google::protobuf::Duration ToProto(absl::Duration duration) {
  duration = std::clamp(duration, -kMaxDuration, kMaxDuration);
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  const absl::Duration result =
      absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
  if (result > kMaxDuration) return absl::InfiniteDuration();
  if (result < -kMaxDuration) return -absl::InfiniteDuration();
  return result;
}

absl::StatusOr<absl::Duration> ReadDuration(const google::protobuf::Duration& duration,
                                            std::string_view field) {
  const int64_t seconds = duration.seconds();
  const int32_t nanos = duration.nanos();
  const auto invalid = [&](std::string_view why) {
    return InvalidField(
        field, absl::StrCat("has seconds ", seconds, " and nanos ", nanos, ": ", std::string(why)));
  };
  const int64_t max_seconds = absl::ToInt64Seconds(kMaxDuration);
  if (seconds < -max_seconds || seconds > max_seconds) {
    return invalid(absl::StrCat("seconds must be at most ", max_seconds));
  }
  if (nanos < -kMaxNanos || nanos > kMaxNanos) {
    return invalid(absl::StrCat("nanos must be from 0 to ", kMaxNanos));
  }
  if ((seconds > 0 && nanos < 0) || (seconds < 0 && nanos > 0)) {
    return invalid("their signs must not differ");
  }
  if (seconds < 0 || nanos < 0) {
    return InvalidField(field, "is negative; give zero or more, or leave it out");
  }
  return absl::Seconds(seconds) + absl::Nanoseconds(nanos);
}

v1::Rates ToProto(const RateMeter::Rates& rates) {
  v1::Rates proto;
  *proto.mutable_window() = ToProto(rates.window);
  proto.set_generated_tokens_per_second(rates.generated_tokens_per_second);
  proto.set_prompt_tokens_per_second(rates.prompt_tokens_per_second);
  proto.set_finished_requests_per_second(rates.finished_requests_per_second);
  return proto;
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEog:
      return v1::FINISH_REASON_EOG;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kMaxTokens:
      return v1::FINISH_REASON_MAX_TOKENS;
    case FinishReason::kContextLength:
      return v1::FINISH_REASON_CONTEXT_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kDrained:
      return v1::FINISH_REASON_DRAINED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::LoadStage ToProto(LoadStage stage) {
  switch (stage) {
    case LoadStage::kOpen:
      return v1::LOAD_STAGE_OPEN;
    case LoadStage::kVerify:
      return v1::LOAD_STAGE_VERIFY;
    case LoadStage::kPlace:
      return v1::LOAD_STAGE_PLACE;
    case LoadStage::kSelfCheck:
      return v1::LOAD_STAGE_SELF_CHECK;
  }
  return v1::LOAD_STAGE_UNSPECIFIED;
}

v1::ModelDescription DescribeModel(const Engine& engine, const std::string& model_id,
                                   const std::string& file) {
  const Model& model = engine.model();
  const ModelSpec& spec = model.spec();
  // Layers do not differ in their heads.
  const LayerSpec& layer = spec.layers[0];
  v1::ModelDescription description;
  description.set_model_id(model_id);
  description.set_file(file);
  description.set_digest(model.digest());
  description.set_architecture(spec.architecture);
  description.set_name(spec.name);
  description.set_quantization(model.quantization());
  description.set_parameters(model.parameters());
  description.set_size_bytes(model.size_bytes());
  description.set_layers(spec.num_layers());
  description.set_hidden(spec.hidden);
  description.set_heads(layer.heads);
  description.set_kv_heads(layer.kv_heads);
  description.set_head_dim(layer.head_dim);
  FillFeedForward(spec, description);
  description.set_vocab(spec.vocab);
  description.set_context_length(engine.max_context());
  description.set_window(spec.window());
  description.set_window_layers(static_cast<uint32_t>(
      std::ranges::count_if(spec.layers, [](const LayerSpec& l) { return l.window > 0; })));
  for (int32_t id : model.tokenizer().eog_ids()) description.add_eog_token_ids(id);
  description.set_chat_supported(model.chat_template().supported());
  description.set_chat_tools_supported(model.chat_template().shows_tools());
  description.set_numeric_identity(engine.backend_info().numeric_identity);
  description.set_constraints_supported(ConstraintCompiler::IsBuilt());
  if (const int32_t id = ThinkingEndId(model.tokenizer()); id >= 0) {
    description.set_thinking_end_token_id(static_cast<uint32_t>(id));
  }
  if (!model.sampling_defaults().empty()) {
    Fill(*description.mutable_sampling_defaults(), model.sampling_defaults());
  }
  DescribeSpeculation(engine.speculation(), description);
  MakeTextValid(description);
  return description;
}

void DescribeSpeculation(const SpeculationInfo& info, v1::ModelDescription& description) {
  if (!IsAskedFor(info)) return;
  v1::Speculation& speculation = *description.mutable_speculation();
  speculation.set_drafter(info.drafter);
  speculation.set_draft_model(info.model);
  speculation.set_warning(info.warning);
  MakeTextValid(speculation);
}

v1::Device DescribeDevice(const BackendInfo& backend) {
  v1::Device device;
  device.set_backend(backend.name);
  device.set_name(backend.device);
  device.set_threads(backend.threads);
  device.set_kernels(backend.kernels);
  device.set_numeric_identity(backend.numeric_identity);
  if (backend.gpu) {
    v1::Gpu* gpu = device.mutable_gpu();
    gpu->set_uuid(backend.gpu->uuid);
    gpu->set_driver_version(backend.gpu->driver_version);
    gpu->set_memory_total_bytes(backend.gpu->memory_total_bytes);
    gpu->set_memory_free_bytes(backend.gpu->memory_free_bytes);
  }
  return device;
}

void AppendTo(v1::GenerateDelta& delta, const DeltaEvent& event) {
  delta.set_sample(event.sample);
  delta.mutable_text()->append(event.text);
  for (int32_t token : event.tokens) delta.add_token_ids(token);
  for (const SampledToken& sampled : event.logprobs) Fill(*delta.add_logprobs(), sampled);
  for (const SampledToken& scored : event.prompt_logprobs) {
    Fill(*delta.add_prompt_logprobs(), scored);
  }
}

v1::GenerateFinished ToProto(const FinishedEvent& event, const std::string& model_digest) {
  v1::GenerateFinished finished;
  if (event.status.ok()) {
    FillEnd(event, finished);
    for (const SampleEnd& sample : event.samples) {
      v1::SampleFinished* proto = finished.add_samples();
      FillEnd(sample, *proto);
      proto->set_generated_tokens(sample.generated_tokens);
    }
  }
  v1::Usage* usage = finished.mutable_usage();
  usage->set_prompt_tokens(event.prompt_tokens);
  usage->set_cached_prompt_tokens(event.cached_prompt_tokens);
  usage->set_generated_tokens(event.generated_tokens);
  usage->set_forced_tokens(event.forced_tokens);
  usage->set_draft_tokens(event.draft_tokens);
  usage->set_accepted_draft_tokens(event.accepted_draft_tokens);
  v1::Timings* timings = finished.mutable_timings();
  *timings->mutable_queue() = ToProto(event.queue_time);
  *timings->mutable_prefill() = ToProto(event.prefill_time);
  *timings->mutable_decode() = ToProto(event.decode_time);
  finished.set_model_digest(model_digest);
  return finished;
}

}  // namespace orcd
